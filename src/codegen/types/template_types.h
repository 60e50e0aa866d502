// The C++ type of templates/formats.cuh that a dtype stands for; compile errors where kDtypeTable and `Formats` differ.
// A granularity as templates/granularity.cuh has it.
#pragma once

#include <cstddef>
#include <string_view>
#include <tuple>
#include <utility>

#include "ingot/codegen/types/dtype.h"
#include "ingot/codegen/types/granularity.h"

#include "formats.cuh"
#include "granularity.cuh"

namespace ingot {

template <class T>
struct Type {
  using type = T;
};

template <class List>
struct IndexedFormats;
template <class... All>
struct IndexedFormats<FormatList<All...>> {
  static constexpr std::size_t kCount = sizeof...(All);
  template <std::size_t Index>
  using At = typename std::tuple_element_t<Index, std::tuple<Type<All>...>>::type;
};

template <Dtype D>
using TypeOf = IndexedFormats<Formats>::At<static_cast<std::size_t>(D)>;

// The dtype of a type, which is the table's first that has it.
template <class T, std::size_t Index = 0>
constexpr Dtype dtype_of() {
  static_assert(Index < kDtypeTable.size(), "no dtype stands for this type");
  if constexpr (is_same<T, IndexedFormats<Formats>::At<Index>>) {
    return static_cast<Dtype>(Index);
  } else {
    return dtype_of<T, Index + 1>();
  }
}
template <class T>
inline constexpr Dtype kDtypeOf = dtype_of<T>();

namespace dtype_checks {

constexpr bool in_the_enums_order() {
  for (std::size_t i = 0; i < kDtypeTable.size(); ++i) {
    if (static_cast<std::size_t>(kDtypeTable[i].dtype) != i) return false;
  }
  return true;
}

// "e4m3fn" of struct e4m3fn.
template <class T>
constexpr std::string_view name_of_type() {
  std::string_view text = __PRETTY_FUNCTION__;  // "... [with T = ingot::e4m3fn; ...]"
  text.remove_prefix(text.find("T = ") + 4);
  text = text.substr(0, text.find_first_of(";]"));
  const std::size_t colons = text.rfind("::");
  return colons == std::string_view::npos ? text : text.substr(colons + 2);
}

// Each says of which dtype it speaks in its instantiation's name.
template <Dtype D>
struct Compared {
  using T = TypeOf<D>;
  static constexpr DtypeFacts kFacts = facts_of(D);
  static_assert(sizeof(T) == static_cast<std::size_t>(size_of(D)),
                "kDtypeTable (dtype.h) and the type in Formats (formats.cuh) differ in size");
  static_assert(HighPrecision<T> == (kFacts.kind == DtypeKind::high_precision) &&
                    Fp8Format<T> == (kFacts.kind == DtypeKind::fp8) &&
                    SubByteFormat<T> == (kFacts.kind == DtypeKind::sub_byte),
                "kDtypeTable (dtype.h) and the type in Formats (formats.cuh) differ in kind");
  static_assert(
      [] {
        if constexpr (CodeFormat<T>) {
          return kCodeBits<T> == kFacts.bits && T::kMax == kFacts.max && OcpFormat<T> == kFacts.ocp;
        } else {
          return kFacts.max == 0.0 && !kFacts.ocp;
        }
      }(),
      "kDtypeTable (dtype.h) and the type in Formats (formats.cuh) differ in bits, largest value or OCP");
  static_assert(is_same<T, f32> || is_same<T, u8> || name_of_type<T>() == kFacts.name,
                "kDtypeTable (dtype.h) and Formats (formats.cuh) have different names at the same place");
  static_assert(packed_unit(D) * kFacts.bits % 8 == 0, "packed_unit() (dtype.h) does not know codes of this many bits");
  static_assert(!kFacts.mx_element || kFacts.kind == DtypeKind::fp8 || kFacts.kind == DtypeKind::sub_byte);
  static_assert(!kFacts.weight || kFacts.kind == DtypeKind::fp8 || kFacts.kind == DtypeKind::sub_byte);
};

template <std::size_t... Index>
constexpr bool compared(std::index_sequence<Index...>) {
  return (sizeof(Compared<kDtypeTable[Index].dtype>) + ... + 0) > 0;
}

static_assert(in_the_enums_order(), "kDtypeTable (dtype.h) lacks a line of the enum, or has another order");
static_assert(IndexedFormats<Formats>::kCount == kDtypeTable.size(),
              "kDtypeTable (dtype.h) and Formats (formats.cuh) differ in length");
static_assert(compared(std::make_index_sequence<kDtypeTable.size()>{}));

}  // namespace dtype_checks

// Requires extents that are not negative, as a valid spec has them.
constexpr Granularity template_granularity(ScaleGranularity granularity) {
  return {.rows = static_cast<u32>(granularity.rows), .cols = static_cast<u32>(granularity.cols)};
}

}  // namespace ingot
