#include "ingot/runtime/gemm/gemm_params.h"

#include <algorithm>
#include <bit>
#include <cstddef>

namespace ingot::cuda {
namespace {

static_assert(kMaxInputs == kMaxPointwiseInputs);

// Elements from one m (or n) of an operand to the next, and from one k to the next.
struct Strides {
  i64 outer, k;
};

Strides strides(const Tensor& operand, Layout layout) {
  if (layout == Layout::k_major) return {.outer = operand.row_stride, .k = 1};
  return {.outer = 1, .k = operand.row_stride};
}

u32 copied_bytes(const Tensor& operand, Layout layout) {
  return layout == Layout::k_major ? mma_copied_bytes(operand.data, operand.row_stride * size_of(operand.dtype)) : 0;
}

}  // namespace

EpilogueParams epilogue_params(const GemmTensors& tensors) {
  EpilogueParams params{.c = tensors.c.data,
                        .c_stride = tensors.c.row_stride,
                        .operands = {},
                        .preactivation = tensors.preactivation.data,
                        .preactivation_stride = tensors.preactivation.row_stride,
                        .amax = static_cast<u32*>(tensors.amax.data),
                        .scale = static_cast<const float*>(tensors.scale.data),
                        .factor = static_cast<float*>(tensors.scale_inv.data),
                        .beta = tensors.beta};
  for (std::size_t i = 0; i < kMaxPointwiseInputs; ++i) {
    params.operands[i] = {.data = tensors.inputs[i].data, .stride = tensors.inputs[i].row_stride};
  }
  return params;
}

GemmParams gemm_params(const GemmSpec& spec, const GemmTensors& tensors, const MatmulSize& size) {
  const Strides a = strides(tensors.a, spec.layout_a);
  const Strides b = strides(tensors.b, spec.layout_b);
  const ScaleInvStrides scale_inv_a = scale_inv_strides(tensors.scale_inv_a, spec.scale_a, size.k);
  const ScaleInvStrides scale_inv_b = scale_inv_strides(tensors.scale_inv_b, spec.scale_b, size.k);
  return {.a = tensors.a.data,
          .b = tensors.b.data,
          .factor_a = static_cast<const float*>(tensors.scale_inv_a.data),
          .factor_b = static_cast<const float*>(tensors.scale_inv_b.data),
          .bias = tensors.bias.data,
          .out = tensors.out.data,
          .m = size.m,
          .n = size.n,
          .k = size.k,
          .a_stride_m = a.outer,
          .a_stride_k = a.k,
          .b_stride_n = b.outer,
          .b_stride_k = b.k,
          .out_stride = tensors.out.row_stride,
          .factor_a_stride = scale_inv_a.row,
          .factor_b_stride = scale_inv_b.row,
          .factor_a_group_stride = scale_inv_a.group,
          .factor_b_group_stride = scale_inv_b.group,
          .factor_b_rows = std::max(spec.scale_b.rows, 1),
          .epilogue = epilogue_params(tensors)};
}

GemmMmaParams gemm_mma_params(const GemmSpec& spec, const GemmTensors& tensors, const MatmulSize& size) {
  const Tensor& out = tensors.out;
  const bool out_pairs = aligned(out.data, static_cast<u32>(2 * size_of(out.dtype))) && out.row_stride % 2 == 0;
  const GemmParams gemm = gemm_params(spec, tensors, size);
  return {.gemm = gemm,
          .factor_b_shift = static_cast<u32>(std::countr_zero(static_cast<u64>(gemm.factor_b_rows))),
          .a_copied = copied_bytes(tensors.a, spec.layout_a),
          .b_copied = copied_bytes(tensors.b, spec.layout_b),
          .out_pairs = out_pairs ? 1U : 0U};
}

}  // namespace ingot::cuda
