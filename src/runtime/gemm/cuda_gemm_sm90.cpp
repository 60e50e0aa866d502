// gemm by kernel sm90 (templates/gemm/gemm_sm90.cuh): one launch of persistent blocks, which may also compute two GEMMs
// (templates/gemm/gemm_sm90_pair.cuh) or those of many experts (templates/gemm/gemm_sm90_grouped.cuh). Tensor maps are
// encoded into the kernel's parameters in each call (0.1 us each, not worth caching). Stream-K uses the stream's
// scratch memory for partial tiles that blocks hand to each other, and its zeros for flags; staged operands follow them
// in the scratch memory.
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "ingot/codegen/gemm/gemm_sm90.h"
#include "ingot/codegen/gemm/gemm_spec.h"
#include "ingot/codegen/types/experts.h"
#include "ingot/runtime/core/stream.h"
#include "ingot/runtime/cuda/driver.h"
#include "ingot/runtime/gemm/gemm_operations.h"
#include "ingot/runtime/gemm/gemm_params.h"
#include "ingot/runtime/gemm/gemm_rules.h"
#include "ingot/runtime/gemm/gemm_tensors.h"
#include "ingot/runtime/jit/launcher.h"
#include "ingot/runtime/util/error.h"

#include "gemm/gemm_sm90_grouped.cuh"
#include "gemm/gemm_sm90_pair.cuh"

namespace ingot::cuda {
namespace {

static_assert(sizeof(TensorMap) == sizeof(CUtensorMap) && alignof(TensorMap) >= alignof(CUtensorMap));

// Rows of 128 bytes, unless it says otherwise.
struct Box {
  CUtensorMapDataType type;
  u32 cols, rows;
  CUtensorMapSwizzle swizzle = CU_TENSOR_MAP_SWIZZLE_128B;
};

// Rows that do not start at a sector pair gain nothing from prefetching what is next to them, which makes them a tenth
// slower (docs/notes/gemm.md).
CUtensorMapL2promotion promotion(cuuint64_t stride) {
  return stride % 64 == 0 ? CU_TENSOR_MAP_L2_PROMOTION_L2_256B : CU_TENSOR_MAP_L2_PROMOTION_L2_128B;
}

// Reads outside the matrix give zeros; writes there do nothing.
void encode(TensorMap& map, const Tensor& tensor, const Box& box, const Driver& driver) {
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(tensor.cols), static_cast<cuuint64_t>(tensor.rows)};
  const cuuint64_t strides[] = {static_cast<cuuint64_t>(tensor.row_stride * size_of(tensor.dtype))};
  const cuuint32_t extents[] = {box.cols, box.rows};
  const cuuint32_t steps[] = {1, 1};
  driver.check(
      driver.api().cuTensorMapEncodeTiled(reinterpret_cast<CUtensorMap*>(&map), box.type, 2, tensor.data, sizes,
                                          strides, extents, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, box.swizzle,
                                          promotion(strides[0]), CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
      "cuTensorMapEncodeTiled");
}

struct Rows {
  u32 all;     // of the operand; of one expert's
  u32 tile;    // of a tile
  u32 blocks;  // that load them for each other
};

// Elements along K in a stage.
u32 step_of(Dtype dtype) { return is_fp8(dtype) ? kSm90Depth : kSm90Step16; }

// A step's elements of so many rows.
Box box_of(const Tensor& operand, u32 rows) {
  return {.type = is_fp8(operand.dtype) ? CU_TENSOR_MAP_DATA_TYPE_UINT8 : CU_TENSOR_MAP_DATA_TYPE_UINT16,
          .cols = step_of(operand.dtype),
          .rows = rows};
}

// Maps for whole tiles, and for a last one with fewer rows; across K, one for all.
void encode_operand(TensorMap& whole, TensorMap& tail, const Tensor& operand, Layout layout, const Rows& rows,
                    const Driver& driver) {
  if (layout == Layout::mn_major) {
    return encode(whole, operand, box_of(operand, kSm90Step16 / rows.blocks), driver);
  }
  if (rows.all >= rows.tile) encode(whole, operand, box_of(operand, rows.tile / rows.blocks), driver);
  const u32 last = rows.all % rows.tile;
  if (last != 0) encode(tail, operand, box_of(operand, sm90_tail_box(last, rows.blocks)), driver);
}

// A warp's 16 rows.
void encode_out(TensorMap& map, const Tensor& out, const Sm90Tiling& tiling, const Driver& driver) {
  const auto bytes = static_cast<u32>(size_of(out.dtype));
  const u32 cols = sm90_chunk_columns(tiling, bytes);
  encode(map, out,
         {.type = bytes == 4 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32 : CU_TENSOR_MAP_DATA_TYPE_UINT16,
          .cols = cols,
          .rows = 16,
          .swizzle = cols * bytes == 64 ? CU_TENSOR_MAP_SWIZZLE_64B : CU_TENSOR_MAP_SWIZZLE_128B},
         driver);
}

bool whole_vectors(const Tensor& out) { return aligned(out.data, 16) && out.row_stride * size_of(out.dtype) % 16 == 0; }

// All but the cut of stream-K. size: of one expert's b.
Sm90GemmParams params_of(const GemmSpec& spec, const GemmTensors& tensors, const MatmulSize& size,
                         const Driver& driver) {
  const Sm90Tiling tiling = sm90_tiling(*spec.tiling);
  const ScaleInvStrides scale_inv_a = scale_inv_strides(tensors.scale_inv_a, spec.scale_a, size.k);
  const ScaleInvStrides scale_inv_b = scale_inv_strides(tensors.scale_inv_b, spec.scale_b, size.k);
  Sm90GemmParams params{.a = {},
                        .b = {},
                        .tail_a = {},
                        .tail_b = {},
                        .out_map = {},
                        .factor_a = static_cast<const float*>(tensors.scale_inv_a.data),
                        .factor_b = static_cast<const float*>(tensors.scale_inv_b.data),
                        .bias = tensors.bias.data,
                        .out = tensors.out.data,
                        .out_stride = tensors.out.row_stride,
                        .m = static_cast<u32>(size.m),
                        .n = static_cast<u32>(size.n),
                        .k = static_cast<u32>(size.k),
                        .factor_a_stride = static_cast<u32>(scale_inv_a.row),
                        .factor_b_stride = static_cast<u32>(scale_inv_b.row),
                        .factor_a_group_stride = static_cast<u32>(scale_inv_a.group),
                        .factor_b_group_stride = static_cast<u32>(scale_inv_b.group),
                        .factor_b_expert_stride = 0,
                        .whole_vectors = whole_vectors(tensors.out) ? 1U : 0U,
                        .factors_by_engine = sm90_by_engine(spec, tensors, size) ? 1U : 0U,
                        .epilogue = epilogue_params(tensors),
                        .cut = {}};
  if (params.whole_vectors != 0 && !is_fp8(spec.out)) encode_out(params.out_map, tensors.out, tiling, driver);
  if (size.k == 0) return params;  // along K, where no operand is read then
  // Once they are staged, operands are stored along K.
  encode_operand(params.a, params.tail_a, tensors.a, spec.staged_a ? Layout::k_major : spec.layout_a,
                 {.all = static_cast<u32>(size.m), .tile = tiling.m, .blocks = tiling.cluster_n}, driver);
  encode_operand(params.b, params.tail_b, tensors.b, spec.staged_b ? Layout::k_major : spec.layout_b,
                 {.all = static_cast<u32>(size.n), .tile = tiling.n, .blocks = tiling.cluster_m}, driver);
  return params;
}

}  // namespace

void gemm_sm90(const GemmSpec& spec, const GemmTensors& given, const MatmulSize& size, Stream& stream,
               Launcher& launcher) {
  const Sm90Tiling tiling = sm90_tiling(*spec.tiling);
  const auto m = static_cast<u32>(size.m);
  const auto n = static_cast<u32>(size.n);
  const auto k = static_cast<u32>(size.k);
  const auto multiprocessors = static_cast<u32>(launcher.multiprocessors());
  const u32 step = step_of(spec.a);
  const StreamKSplit split =
      tiling.stream_k ? stream_k_split_at_once(sm90_work(tiling, m, n, k, step), multiprocessors) : StreamKSplit{};
  const u32 blocks = tiling.stream_k ? split.blocks : sm90_blocks(tiling, m, n, multiprocessors);
  const std::size_t parts = stream_k_bytes(split, sm90_part_bytes(tiling));
  const std::size_t scratch_bytes = parts + staged_bytes(spec, size);
  auto* const scratch = scratch_bytes == 0 ? nullptr : static_cast<std::byte*>(stream.scratch(scratch_bytes));
  std::optional<GemmTensors> staged;
  if (spec.staged_a || spec.staged_b) staged = stage(spec, given, size, scratch + parts, stream, launcher);
  const GemmTensors& tensors = staged ? *staged : given;
  Sm90GemmParams params = params_of(spec, tensors, size, launcher.driver());
  if (tiling.stream_k) params.cut = stream_k_params(split, scratch, kSm90Warps, stream);
  launcher.launch(spec, Pass::main,
                  {.grid_x = blocks,
                   .block = sm90_threads(tiling),
                   .cluster = sm90_cluster_size(tiling),
                   .shared_bytes = sm90_shared_bytes(sm90_scale_inv_config(spec))},
                  params, stream);
}

void gemm_sm90_pair(const GemmPairSpec& spec, const GemmTensors& first, const GemmTensors& second, const Stream& stream,
                    Launcher& launcher) {
  const MatmulSize size_of_first = gemm_size(spec.first, first);
  const MatmulSize size_of_second = gemm_size(spec.second, second);
  const auto blocks = [half = static_cast<u32>(launcher.multiprocessors()) / 2](const GemmSpec& gemm,
                                                                                const MatmulSize& size) {
    return sm90_blocks(sm90_tiling(*gemm.tiling), static_cast<u32>(size.m), static_cast<u32>(size.n), half);
  };
  const auto shared_bytes = [](const GemmSpec& gemm) { return sm90_shared_bytes(sm90_scale_inv_config(gemm)); };
  const Sm90PairParams params{.gemms = {params_of(spec.first, first, size_of_first, launcher.driver()),
                                        params_of(spec.second, second, size_of_second, launcher.driver())}};
  // Blocks without a tile end at once.
  launcher.launch(spec, Pass::main,
                  {.grid_x = std::max(blocks(spec.first, size_of_first), blocks(spec.second, size_of_second)),
                   .grid_y = 2,
                   .block = sm90_threads(sm90_tiling(*spec.first.tiling)),
                   .shared_bytes = std::max(shared_bytes(spec.first), shared_bytes(spec.second))},
                  params, stream);
}

namespace {

// What gemm_sm90() and the rules need to know of a grouped GEMM's tensors.
GemmTensors gemm_tensors(const GroupedGemmTensors& t) {
  return {.a = t.a,
          .b = t.b,
          .scale_inv_a = t.scale_inv_a,
          .scale_inv_b = t.scale_inv_b,
          .bias = t.bias,
          .out = t.out,
          .c = t.c,
          .beta = t.beta};
}

// The output of all experts, with the K of one or of all.
MatmulSize size_of_all(const GroupedGemmSpec& spec, const GroupedGemmTensors& tensors, const MatmulSize& size) {
  if (!spec.along_k) return {.m = size.m, .n = tensors.b.rows, .k = size.k};
  return {.m = tensors.ends.experts * size.m, .n = size.n, .k = std::max<std::int64_t>(size.k, 1)};
}

// From one expert's scale_inv to the next one's, of an operand with so many rows, of which rowwise ones are along K
// each expert's or those of all; 0: they are those of all.
u32 expert_stride(const Tensor& scale_inv, ScaleGranularity scale, std::int64_t rows, std::int64_t experts) {
  const std::int64_t of_all = scale == kRowwise ? rows : 1;
  return scale_inv.cols == of_all ? 0 : static_cast<u32>(scale_inv.cols / experts);
}

void launch_grouped(const GroupedGemmSpec& spec, const GroupedGemmTensors& tensors, const MatmulSize& size,
                    const Stream& stream, Launcher& launcher) {
  const std::int64_t experts = tensors.ends.experts;
  const GroupedGemmSpec chosen = with_grouped_tiling(spec, size, experts, launcher.multiprocessors());
  const GemmTensors gemm = gemm_tensors(tensors);
  if (const char* const reason = sm90_refusal(chosen.gemm, gemm, size_of_all(spec, tensors, size), launcher.target())) {
    throw Error(ErrorCode::invalid_argument, print(spec),
                fmt::format("{}; grouped GEMMs have no other kernel", reason));
  }
  const Sm90Tiling tiling = sm90_tiling(*chosen.gemm.tiling);
  Sm90GroupedParams params{.gemm = params_of(chosen.gemm, gemm, size, launcher.driver()),
                           .ends = tensors.ends.data,
                           .experts = static_cast<u32>(experts),
                           .capacity = static_cast<u32>(tensors.ends.capacity.value_or(0))};
  const auto multiprocessors = static_cast<u32>(launcher.multiprocessors());
  u32 blocks = 0;
  const bool groups = has_group_scale_inv(spec.gemm);
  if (groups && !spec.along_k) {
    const std::int64_t rows = divided_up(size.n, spec.gemm.scale_b.rows);
    const bool of_each = is_by_group_of_each(spec.gemm, tensors);
    // The groups of K of each expert, or all blocks of b's rows of an expert.
    params.gemm.factor_b_expert_stride =
        of_each ? static_cast<u32>(tensors.scale_inv_b.rows / experts) * params.gemm.factor_b_group_stride
                : static_cast<u32>(rows) * params.gemm.factor_b_stride;
  }
  if (spec.along_k && groups) {
    blocks = sm90_along_k_blocks(tiling, params.gemm.m, params.gemm.n, params.experts, multiprocessors);
  } else if (spec.along_k) {
    params.gemm.factor_a_group_stride = expert_stride(tensors.scale_inv_a, spec.gemm.scale_a, size.m, experts);
    params.gemm.factor_b_group_stride = expert_stride(tensors.scale_inv_b, spec.gemm.scale_b, size.n, experts);
    blocks = sm90_along_k_blocks(tiling, params.gemm.m, params.gemm.n, params.experts, multiprocessors);
  } else {
    if (spec.gemm.scale_a == kTensorwise && is_fp8(spec.gemm.a)) {
      params.gemm.factor_a_group_stride = expert_stride(tensors.scale_inv_a, kTensorwise, size.m, experts);
    }
    encode(params.gemm.tail_a, tensors.a, box_of(tensors.a, sm90_expert_box(tiling)), launcher.driver());
    blocks = sm90_grouped_blocks(tiling, params.gemm.m, params.gemm.n, params.experts, multiprocessors);
  }
  GemmSm90Config config = sm90_scale_inv_config(chosen.gemm);
  config.experts = true;
  config.along_k = spec.along_k;
  launcher.launch(chosen, Pass::main,
                  {.grid_x = blocks,
                   .block = sm90_threads(tiling),
                   .cluster = sm90_cluster_size(tiling),
                   .shared_bytes = sm90_shared_bytes(config)},
                  params, stream);
}

// Sums of nothing: as of a K of 1 whose operands are zero. All of them lies outside a matrix of one element, where the
// copy engine reads zeros. There are no groups, so no scale_inv of theirs: the kernel reads one of b for each expert
// instead, kMostExperts zeros.
void launch_grouped_of_nothing(const GroupedGemmSpec& spec, const GroupedGemmTensors& tensors, const MatmulSize& size,
                               Stream& stream, Launcher& launcher) {
  constexpr std::int64_t kStride = 16;  // the copy engine's least, bytes
  void* const zeros = stream.zeros(kMostExperts * sizeof(float));
  GroupedGemmSpec of_one = spec;
  GroupedGemmTensors one = tensors;
  for (Tensor* const operand : {&one.a, &one.b}) {
    *operand = matrix(zeros, operand->dtype, 1, 1, operand->device);
    operand->row_stride = kStride / size_of(operand->dtype);
  }
  if (has_group_scale_inv(spec.gemm)) {
    of_one.gemm.tiling.reset();
    of_one.gemm.scale_a = of_one.gemm.scale_b = kTensorwise;
    one.scale_inv_a = one.scale_inv_b = vector(zeros, Dtype::f32, 1, tensors.a.device);
  }
  launch_grouped(of_one, one, {.m = size.m, .n = size.n, .k = 1}, stream, launcher);
}

}  // namespace

void grouped_gemm(const GroupedGemmSpec& spec, const GroupedGemmTensors& tensors, Stream& stream, Launcher& launcher) {
  const MatmulSize size = gemm_size(spec, tensors);
  if (size.m == 0 || size.n == 0) return;
  if (size.k == 0 && !spec.along_k) return launch_grouped_of_nothing(spec, tensors, size, stream, launcher);
  launch_grouped(spec, tensors, size, stream, launcher);
}

}  // namespace ingot::cuda
