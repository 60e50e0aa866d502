// What a fused expression is to a kernel: a struct that src/codegen/pointwise/pointwise_render.cpp writes as text,
// above the line that names the kernel's instantiation.
//
//   struct Forward {
//     static constexpr u32 kInputs = 1;                                      // besides x
//     static constexpr bool kUsesX = true;
//     static constexpr InputKind kKinds[kMaxInputs] = {InputKind::matrix};   // of the first kInputs
//     static float apply(float x, float a0);
//   };
#pragma once

#include "platform.cuh"
#include "pointwise/math.cuh"

namespace ingot {

inline constexpr u32 kMaxInputs = 4;

// One element for each of the matrix's; one for each column, of the matrices' type; one for each row, and one for each
// column, of f32.
enum class InputKind : u8 { matrix, column, row, column_f32 };

// No expression: the element as it is.
struct Identity {
  static constexpr u32 kInputs = 0;
  static constexpr bool kUsesX = true;
  static constexpr InputKind kKinds[kMaxInputs] = {};
  static INGOT_HOST_DEVICE float apply(float x) { return x; }
};

// Further inputs of a kind.
template <class F>
INGOT_HOST_DEVICE constexpr u32 count_inputs(InputKind kind) {
  u32 count = 0;
  for (int i = 0; i < static_cast<int>(F::kInputs); ++i) count += F::kKinds[i] == kind ? 1 : 0;
  return count;
}

// The expression of one element, with its inputs in an array; those from kInputs on are not read.
template <class F>
INGOT_HOST_DEVICE float apply_pointwise(float x, const float (&a)[kMaxInputs]) {
  static_assert(F::kInputs <= kMaxInputs);
  if constexpr (F::kInputs == 0) {
    return F::apply(x);
  } else if constexpr (F::kInputs == 1) {
    return F::apply(x, a[0]);
  } else if constexpr (F::kInputs == 2) {
    return F::apply(x, a[0], a[1]);
  } else if constexpr (F::kInputs == 3) {
    return F::apply(x, a[0], a[1], a[2]);
  } else {
    return F::apply(x, a[0], a[1], a[2], a[3]);
  }
}

}  // namespace ingot
