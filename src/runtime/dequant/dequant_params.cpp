#include "ingot/runtime/dequant/dequant_params.h"

#include <algorithm>
#include <cstddef>

#include "ingot/codegen/dequant/dequant_spec.h"
#include "ingot/codegen/types/granularity.h"
#include "ingot/runtime/dequant/dequant_operations.h"
#include "ingot/runtime/gemm/gemm_tensors.h"

namespace ingot::cuda {
namespace {

// Bytes of eight codes that are read at once.
u32 vector_bytes(Dtype weight) { return bits_of(weight) == 8 ? 8 : bits_of(weight) == 6 ? 2 : 4; }

DequantCodesSource codes_of(const DequantMatmulSpec& spec, const Tensor& weight, const MatmulSize& size) {
  const i64 row_bytes = weight.row_stride * bits_of(spec.weight) / 8;
  return {.data = static_cast<const u8*>(weight.data),
          .n = size.n,
          .k = size.k,
          .row_bytes = row_bytes,
          .vectors =
              aligned(weight.data, vector_bytes(spec.weight)) && row_bytes % vector_bytes(spec.weight) == 0 ? 1U : 0U};
}

}  // namespace

DequantExperts expert_params(const DequantMatmulSpec& spec, const DequantMatmulTensors& tensors) {
  if (!spec.experts) return {};
  const MatmulSize size = dequant_size(tensors);
  const Tensor& weight = tensors.weight;
  const i64 weight_bytes = is_packed(spec.layout) ? packed_weight_bytes(spec.weight, size.n, size.k)
                                                  : size.n * weight.row_stride * bits_of(spec.weight) / 8;
  const i64 factors = scale_count(spec.scale, size.n, size.k);
  return {.ends = tensors.ends.data,
          .experts = static_cast<u32>(tensors.ends.experts),
          .capacity = static_cast<u32>(tensors.ends.capacity.value_or(0)),
          .weight_bytes = static_cast<u64>(weight_bytes),
          .factor_bytes = static_cast<u64>(factors * size_of(spec.scale_inv))};
}

EpilogueParams epilogue_params(const DequantMatmulTensors& tensors) {
  EpilogueParams params{};
  for (std::size_t i = 0; i < kMaxPointwiseInputs; ++i) {
    params.operands[i] = {.data = tensors.inputs[i].data, .stride = tensors.inputs[i].row_stride};
  }
  return params;
}

DequantMmaTiling dequant_mma_tiling(const DequantMatmulSpec& spec) {
  return {.tokens = static_cast<u32>(spec.tiling->tokens),
          .rows = static_cast<u32>(spec.tiling->rows),
          .k_warps = static_cast<u32>(spec.tiling->k_warps)};
}

i64 dequant_mma_slice(const DequantMatmulSpec& spec, i64 m, i64 n) {
  constexpr i64 kMostBytes = i64{64} << 20;
  if (spec.tiling->split == 1) return m;
  const DequantMmaTiling tiling = dequant_mma_tiling(spec);
  const i64 tiles_across = dequant_mma_tiles(tiling, 1, n);
  const auto bytes = static_cast<i64>(
      dequant_mma_parts_bytes(tiling, tiles_across, static_cast<u32>(spec.tiling->split)));  // of one tile of tokens
  return std::min(m, std::max(kMostBytes / bytes, i64{1}) * tiling.tokens);
}

DequantMatmulTensors tokens_of(const DequantMatmulSpec& spec, const DequantMatmulTensors& tensors, i64 first,
                               i64 count) {
  const auto at = [](Tensor& tensor, i64 elements) {
    tensor.data = static_cast<std::byte*>(tensor.data) + elements * size_of(tensor.dtype);
  };
  DequantMatmulTensors part = tensors;
  for (Tensor* const matrix : {&part.x, &part.out}) {
    at(*matrix, first * matrix->row_stride);
    matrix->rows = count;
  }
  std::size_t i = 0;
  for (const PointwiseInput& input : spec.pointwise.inputs()) {
    Tensor& operand = part.inputs[i++];
    if (input.kind == PointwiseInput::Kind::matrix) {
      at(operand, first * operand.row_stride);
      operand.rows = count;
    } else if (input.kind == PointwiseInput::Kind::row) {
      at(operand, first);
      operand.cols = count;
    }
  }
  return part;
}

DequantMmaParams dequant_mma_params(const DequantMatmulSpec& spec, const DequantMatmulTensors& tensors, void* parts,
                                    void* arrived) {
  const MatmulSize size = dequant_size(tensors);
  const Tensor& x = tensors.x;
  const Tensor& out = tensors.out;
  const auto out_bytes = static_cast<u32>(size_of(out.dtype));
  const auto* const packed = static_cast<const u8*>(tensors.weight.data);
  const bool has_faults = is_packed(spec.layout);
  const u64 codes_bytes =
      packed_code_bytes(static_cast<u64>(size.n), static_cast<u64>(size.k), static_cast<u32>(bits_of(spec.weight)));
  return {.x = x.data,
          .x_stride = x.row_stride,
          .x_copied = aligned(x.data, 16) && x.row_stride % 8 == 0 ? 1U : 0U,
          .codes = codes_of(spec, tensors.weight, size),
          .factors = tensors.scale_inv.data,
          .factor_stride = static_cast<u64>(scale_inv_strides(spec.scale, size.k).row),
          .faults = has_faults ? reinterpret_cast<const float*>(packed + codes_bytes) : nullptr,
          .bias = tensors.bias.data,
          .out = out.data,
          .out_stride = out.row_stride,
          .out_pairs = aligned(out.data, 2 * out_bytes) && out.row_stride % 2 == 0 ? 1U : 0U,
          .m = size.m,
          .split = static_cast<u32>(spec.tiling->split),
          .parts = static_cast<float*>(parts),
          .arrived = static_cast<u32*>(arrived),
          .epilogue = epilogue_params(tensors),
          .experts = expert_params(spec, tensors)};
}

}  // namespace ingot::cuda
