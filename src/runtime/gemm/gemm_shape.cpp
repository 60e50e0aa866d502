#include "ingot/runtime/gemm/gemm_shape.h"

namespace ingot {

std::int64_t extent_k(const Tensor& operand, Layout layout) {
  return layout == Layout::k_major ? operand.cols : operand.rows;
}

std::int64_t extent_mn(const Tensor& operand, Layout layout) {
  return layout == Layout::k_major ? operand.rows : operand.cols;
}

MatmulSize gemm_size(const GemmSpec& spec, const GemmTensors& tensors) {
  return {.m = extent_mn(tensors.a, spec.layout_a),
          .n = extent_mn(tensors.b, spec.layout_b),
          .k = extent_k(tensors.a, spec.layout_a)};
}

FactorStrides factor_strides(ScaleGranularity scale, std::int64_t k) {
  if (scale.cols == 0) return {.row = scale.rows == 0 ? 0 : 1, .group = 0};
  return {.row = scale.rows == 0 ? 0 : scale_count(scale, 1, k), .group = 1};
}

FactorStrides factor_strides(const Tensor& factors, ScaleGranularity scale, std::int64_t k) {
  if (scale.cols != 0 && factors.rows > 1) return {.row = 1, .group = factors.row_stride};
  return factor_strides(scale, k);
}

}  // namespace ingot
