// How a kernel sees a fused expression: as a struct with the members below.
// src/codegen/pointwise/pointwise_lowering.cpp writes it as text above the line that names the kernel's instantiation.
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

// The kinds of further inputs. matrix: one value per element; column: one per column, in the matrix's dtype; row,
// column_f32: one f32 per row, per column.
enum class InputKind : u8 { matrix, column, row, column_f32 };

// The empty expression: returns the element unchanged.
struct Identity {
  static constexpr u32 kInputs = 0;
  static constexpr bool kUsesX = true;
  static constexpr InputKind kKinds[kMaxInputs] = {};
  static INGOT_HOST_DEVICE float apply(float x) { return x; }
};

// Counts the further inputs of one kind.
template <class F>
INGOT_HOST_DEVICE constexpr u32 count_inputs(InputKind kind) {
  u32 count = 0;
  for (int i = 0; i < static_cast<int>(F::kInputs); ++i) count += F::kKinds[i] == kind ? 1 : 0;
  return count;
}

// Evaluates the expression for one element. Its further inputs come in an array; entries from kInputs on are not read.
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
