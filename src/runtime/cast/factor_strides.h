// The layout of a matrix's factors. Those of 1x128 groups may have either of two orders: row by row in one vector, or
// as a matrix with one row for each group of columns, in which cuBLASLt reads them (gemm/cublaslt_factors.h).
#pragma once

#include <cstdint>

#include "ingot/codegen/types/granularity.h"
#include "ingot/runtime/tensor.h"

namespace ingot {

// The distance, in elements, between the factors of neighbouring rows (or blocks of rows), and between those of
// neighbouring groups of columns; 0 if all share one factor. A GEMM's operand has its columns along K.
struct FactorStrides {
  std::int64_t row, group;
};
// For factors in one vector, in which those of each row (or block of rows) are contiguous.
inline FactorStrides factor_strides(ScaleGranularity scale, std::int64_t cols) {
  if (scale.cols == 0) return {.row = scale.rows == 0 ? 0 : 1, .group = 0};
  return {.row = scale.rows == 0 ? 0 : scale_count(scale, 1, cols), .group = 1};
}

// For checked factors, which may also be a matrix with one row for each group of columns.
inline FactorStrides factor_strides(const Tensor& factors, ScaleGranularity scale, std::int64_t cols) {
  if (scale.cols != 0 && factors.rows > 1) return {.row = 1, .group = factors.row_stride};
  return factor_strides(scale, cols);
}

}  // namespace ingot
