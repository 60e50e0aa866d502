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

}  // namespace ingot
