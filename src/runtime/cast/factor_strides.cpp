#include "ingot/runtime/cast/factor_strides.h"

namespace ingot {

FactorStrides factor_strides(ScaleGranularity scale, std::int64_t cols) {
  if (scale.cols == 0) return {.row = scale.rows == 0 ? 0 : 1, .group = 0};
  return {.row = scale.rows == 0 ? 0 : scale_count(scale, 1, cols), .group = 1};
}

FactorStrides factor_strides(const Tensor& factors, ScaleGranularity scale, std::int64_t cols) {
  if (scale.cols != 0 && factors.rows > 1) return {.row = 1, .group = factors.row_stride};
  return factor_strides(scale, cols);
}

}  // namespace ingot
