// Sizes and strides of a GEMM, from its tensors.
#pragma once

#include <cstdint>

#include "ingot/codegen/kernel_spec.h"
#include "ingot/codegen/types/matmul_size.h"
#include "ingot/runtime/gemm/gemm_tensors.h"

namespace ingot {

// K of one operand, and M of a or N of b.
std::int64_t extent_k(const Tensor& operand, Layout layout);
std::int64_t extent_mn(const Tensor& operand, Layout layout);

// Of checked tensors.
MatmulSize gemm_size(const GemmSpec& spec, const GemmTensors& tensors);

// Elements from the factor of one row (or of one block of rows) to that of the next, and from that of one group of K to
// the next: 0 where there is one for all.
struct FactorStrides {
  std::int64_t row, group;
};
// Of factors in one vector, those of each row (or block of rows) together.
FactorStrides factor_strides(ScaleGranularity scale, std::int64_t k);
// Of checked factors of a GEMM's operand, which may also be a matrix with a row for each group of K.
FactorStrides factor_strides(const Tensor& factors, ScaleGranularity scale, std::int64_t k);

}  // namespace ingot
