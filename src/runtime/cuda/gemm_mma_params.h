// The parameters of templates/gemm_mma.cuh for a call: how its rows may be copied follows from where they lie.
#pragma once

#include <bit>

#include "ingot/codegen/kernel_spec.h"
#include "ingot/runtime/backend.h"
#include "ingot/runtime/check.h"
#include "ingot/runtime/cuda/gemm_epilogue.h"
#include "ingot/runtime/cuda/gemm_strides.h"

#include "gemm_mma.cuh"

namespace ingot::cuda {

// Of checked tensors.
inline GemmMmaParams gemm_mma_params(const GemmSpec& spec, const GemmTensors& tensors, const GemmShape& shape) {
  const GemmStrides a = gemm_strides(tensors.a, spec.layout_a);
  const GemmStrides b = gemm_strides(tensors.b, spec.layout_b);
  const auto copied = [](const Tensor& operand, Layout layout) {
    return layout == Layout::k_major ? mma_copied_bytes(operand.data, operand.row_stride * size_of(operand.dtype)) : 0;
  };
  const Tensor& out = tensors.out;
  const bool out_pairs = aligned(out.data, static_cast<u32>(2 * size_of(out.dtype))) && out.row_stride % 2 == 0;
  return {.a = tensors.a.data,
          .b = tensors.b.data,
          .factor_a = static_cast<const float*>(tensors.factor_a.data),
          .factor_b = static_cast<const float*>(tensors.factor_b.data),
          .bias = tensors.bias.data,
          .out = out.data,
          .m = shape.m,
          .n = shape.n,
          .k = shape.k,
          .a_stride_m = a.outer,
          .a_stride_k = a.k,
          .b_stride_n = b.outer,
          .b_stride_k = b.k,
          .out_stride = out.row_stride,
          .factor_a_stride = spec.scale_a == kRowwise ? 1 : 0,
          .factor_b_stride = spec.scale_b == kRowwise ? 1 : 0,
          .groups = has_group_factors(spec) ? ceil_div(i64{shape.k}, i64{kGemmSimtGroup}) : 0,
          .factor_b_shift = spec.scale_b == kBlocks ? static_cast<u32>(std::countr_zero(unsigned{kBlocks.rows})) : 0,
          .a_copied = copied(tensors.a, spec.layout_a),
          .b_copied = copied(tensors.b, spec.layout_b),
          .out_pairs = out_pairs ? 1U : 0U,
          .epilogue = epilogue_params(tensors)};
}

}  // namespace ingot::cuda
