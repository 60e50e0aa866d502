// Where the elements of a GEMM's operand lie.
#pragma once

#include "ingot/codegen/kernel_spec.h"
#include "ingot/runtime/tensor.h"

namespace ingot::cuda {

// Elements from one m (or n) to the next, and from one k to the next.
struct GemmStrides {
  std::int64_t outer, k;
};

inline GemmStrides gemm_strides(const Tensor& operand, Layout layout) {
  if (layout == Layout::k_major) return {.outer = operand.row_stride, .k = 1};
  return {.outer = 1, .k = operand.row_stride};
}

}  // namespace ingot::cuda
