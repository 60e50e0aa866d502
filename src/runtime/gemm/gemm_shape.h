// The sizes of a GEMM and the strides of its factors, from its tensors.
#pragma once

#include <cstdint>

#include "ingot/codegen/gemm/gemm_spec.h"
#include "ingot/codegen/types/matmul_size.h"
#include "ingot/runtime/gemm/gemm_tensors.h"

namespace ingot {

// K of an operand; and its other extent, which is M for a and N for b.
std::int64_t extent_k(const Tensor& operand, Layout layout);
std::int64_t extent_mn(const Tensor& operand, Layout layout);

// The tensors must have been checked (check_gemm.h).
MatmulSize gemm_size(const GemmSpec& spec, const GemmTensors& tensors);

// The distance, in elements, between the factors of neighbouring rows (or blocks of rows), and between those of
// neighbouring groups of K; 0 if all share one factor.
struct FactorStrides {
  std::int64_t row, group;
};
// For factors in one vector, in which those of each row (or block of rows) are contiguous.
FactorStrides factor_strides(ScaleGranularity scale, std::int64_t k);
// For checked factors of a GEMM's operand, which may also be a matrix with one row for each group of K.
FactorStrides factor_strides(const Tensor& factors, ScaleGranularity scale, std::int64_t k);

}  // namespace ingot
