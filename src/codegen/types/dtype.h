// Element types. One table, kDtypeTable, holds every fact about a type; lists, predicates and names follow from it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace ingot {

// e3m2fn, e2m3fn and e2m1fn have less than a byte, as weights: rows of packed codes (row_bytes()). e8m0fnu: the powers
// of two that scale groups of 32 of them, 2^(code - 127), 255 being NaN (OCP MX 1.0).
// u8: bytes whose meaning something else defines, such as a packed weight. It stays last.
// (GCC says that u8 would hide a type of that name, as if a scoped enum's names were not its own.)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wshadow"
enum class Dtype : std::uint8_t {
  f32,
  bf16,
  f16,
  e4m3fn,
  e5m2,
  e4m3fnuz,
  e5m2fnuz,
  e8m0fnu,
  e3m2fn,
  e2m3fn,
  e2m1fn,
  u8
};
#pragma GCC diagnostic pop

enum class DtypeKind : std::uint8_t { high_precision, fp8, sub_byte, scale, bytes };

struct DtypeFacts {
  Dtype dtype{};
  std::string_view name{};  // also the C++ type's name in templates/formats.cuh
  int bits = 8;             // of an element
  DtypeKind kind = DtypeKind::bytes;
  double max = 0.0;                // the largest finite value of a format of codes
  bool ocp = false;                // an FP8 format of the OCP standard: FP8 tensor cores multiply it
  bool mx_element = false;         // OCP MX groups may consist of it
  bool weight = false;             // a weight that is decoded within its matmul may consist of it
  std::string_view safetensors{};  // the dtype's name in .safetensors files; empty: those have no such tensors
};

// In the enum's order. A new format needs, in addition to its line here and its name above, its struct and its place in
// `Formats` in templates/formats.cuh; src/codegen/types/template_types.h compares them at compile time.
inline constexpr std::array kDtypeTable{
    DtypeFacts{.dtype = Dtype::f32, .name = "f32", .bits = 32, .kind = DtypeKind::high_precision, .safetensors = "F32"},
    DtypeFacts{
        .dtype = Dtype::bf16, .name = "bf16", .bits = 16, .kind = DtypeKind::high_precision, .safetensors = "BF16"},
    DtypeFacts{.dtype = Dtype::f16, .name = "f16", .bits = 16, .kind = DtypeKind::high_precision, .safetensors = "F16"},
    DtypeFacts{.dtype = Dtype::e4m3fn,
               .name = "e4m3fn",
               .kind = DtypeKind::fp8,
               .max = 448.0,
               .ocp = true,
               .mx_element = true,
               .weight = true,
               .safetensors = "F8_E4M3"},
    DtypeFacts{.dtype = Dtype::e5m2,
               .name = "e5m2",
               .kind = DtypeKind::fp8,
               .max = 57344.0,
               .ocp = true,
               .mx_element = true,
               .weight = true,
               .safetensors = "F8_E5M2"},
    DtypeFacts{.dtype = Dtype::e4m3fnuz,
               .name = "e4m3fnuz",
               .kind = DtypeKind::fp8,
               .max = 240.0,
               .weight = true,
               .safetensors = "F8_E4M3FNUZ"},
    DtypeFacts{.dtype = Dtype::e5m2fnuz,
               .name = "e5m2fnuz",
               .kind = DtypeKind::fp8,
               .max = 57344.0,
               .weight = true,
               .safetensors = "F8_E5M2FNUZ"},
    DtypeFacts{.dtype = Dtype::e8m0fnu, .name = "e8m0fnu", .kind = DtypeKind::scale, .safetensors = "F8_E8M0"},
    DtypeFacts{.dtype = Dtype::e3m2fn,
               .name = "e3m2fn",
               .bits = 6,
               .kind = DtypeKind::sub_byte,
               .max = 28.0,
               .mx_element = true,
               .weight = true,
               .safetensors = "F6_E3M2"},
    DtypeFacts{.dtype = Dtype::e2m3fn,
               .name = "e2m3fn",
               .bits = 6,
               .kind = DtypeKind::sub_byte,
               .max = 7.5,
               .mx_element = true,
               .weight = true,
               .safetensors = "F6_E2M3"},
    DtypeFacts{.dtype = Dtype::e2m1fn,
               .name = "e2m1fn",
               .bits = 4,
               .kind = DtypeKind::sub_byte,
               .max = 6.0,
               .mx_element = true,
               .weight = true,
               .safetensors = "F4"},
    // .safetensors files have U8 too, for tensors of integers.
    DtypeFacts{.dtype = Dtype::u8, .name = "u8"},
};

// A value that the enum does not have (memory not initialised, a newer caller) is shown as such by the messages that
// refuse it.
inline constexpr DtypeFacts kUnknownDtype{.name = "unknown dtype"};

constexpr const DtypeFacts& facts_of(Dtype dtype) {
  const auto index = static_cast<std::size_t>(dtype);
  return index < kDtypeTable.size() ? kDtypeTable[index] : kUnknownDtype;
}

// "f32", "bf16", "e4m3fn" ...
constexpr std::string_view name(Dtype dtype) { return facts_of(dtype).name; }
// The inverse of name(); empty for any other text.
constexpr std::optional<Dtype> parse_dtype(std::string_view text) {
  for (const DtypeFacts& facts : kDtypeTable) {
    if (facts.name == text) return facts.dtype;
  }
  return std::nullopt;
}

constexpr int bits_of(Dtype dtype) { return facts_of(dtype).bits; }

constexpr bool is_high_precision(Dtype dtype) { return facts_of(dtype).kind == DtypeKind::high_precision; }
constexpr bool is_fp8(Dtype dtype) { return facts_of(dtype).kind == DtypeKind::fp8; }
constexpr bool is_sub_byte(Dtype dtype) { return facts_of(dtype).kind == DtypeKind::sub_byte; }
// A sign, an exponent and a mantissa in eight bits or less.
constexpr bool is_code_format(Dtype dtype) { return is_fp8(dtype) || is_sub_byte(dtype); }
// The formats of the OCP standard: those that FP8 tensor cores multiply.
constexpr bool is_ocp(Dtype dtype) { return facts_of(dtype).ocp; }
constexpr bool is_mx_element(Dtype dtype) { return facts_of(dtype).mx_element; }
// May a weight that is decoded within a matmul have this dtype?
constexpr bool is_weight(Dtype dtype) { return facts_of(dtype).weight; }

// Largest finite value of a format of codes: 448 of e4m3fn, 57344 of e5m2 ... 0 for the others.
constexpr float fp8_max(Dtype dtype) { return static_cast<float>(facts_of(dtype).max); }

// The dtypes that a predicate takes, in the table's order.
template <bool (*Takes)(Dtype)>
constexpr auto dtypes_that() {
  constexpr std::size_t kCount = [] {
    std::size_t count = 0;
    for (const DtypeFacts& facts : kDtypeTable) count += Takes(facts.dtype) ? 1 : 0;
    return count;
  }();
  std::array<Dtype, kCount> taken{};
  std::size_t i = 0;
  for (const DtypeFacts& facts : kDtypeTable) {
    if (Takes(facts.dtype)) taken[i++] = facts.dtype;
  }
  return taken;
}
inline constexpr std::array kHighPrecisionDtypes = dtypes_that<is_high_precision>();
inline constexpr std::array kFp8Dtypes = dtypes_that<is_fp8>();
inline constexpr std::array kSubByteDtypes = dtypes_that<is_sub_byte>();
inline constexpr std::array kCodeDtypes = dtypes_that<is_code_format>();
inline constexpr std::array kMxDtypes = dtypes_that<is_mx_element>();
inline constexpr std::array kWeightDtypes = dtypes_that<is_weight>();

constexpr bool among(std::span<const Dtype> dtypes, Dtype dtype) {
  for (const Dtype each : dtypes) {
    if (each == dtype) return true;
  }
  return false;
}

// "bf16, f16"
inline std::string list(std::span<const Dtype> dtypes) {
  std::string names;
  for (const Dtype dtype : dtypes) names.append(names.empty() ? "" : ", ").append(name(dtype));
  return names;
}

// Bytes per element; of a dtype of less than a byte 1, the size of what its rows are addressed in.
constexpr int size_of(Dtype dtype) { return is_sub_byte(dtype) ? 1 : bits_of(dtype) / 8; }

// Elements that fill whole bytes: 4 of six bits, 2 of four, else 1. Row strides are multiples of it.
constexpr int packed_unit(Dtype dtype) { return bits_of(dtype) == 6 ? 4 : bits_of(dtype) == 4 ? 2 : 1; }

// Bytes of `elements` in a row. Element i of less than a byte has the bits [i * b, (i + 1) * b) of its row, the least
// significant first: of four bits the low half of a byte comes first; four of six bits fill three bytes.
constexpr std::int64_t row_bytes(Dtype dtype, std::int64_t elements) {
  if (!is_sub_byte(dtype)) return elements * size_of(dtype);
  return elements / 8 * bits_of(dtype) + (elements % 8 * bits_of(dtype) + 7) / 8;  // overflows for no number
}

}  // namespace ingot
