// dequant_matmul on a GPU: tries the kernels of the call's plan in order, and launches the first that supports the
// tensors. A spec that names its kernel has only that one.
#include <algorithm>
#include "dequant/dequant_sm90.cuh"
#include "dequant/pack_weight.cuh"
#include "ingot/codegen/dequant/dequant_sm90.h"
#include "ingot/runtime/core/stream.h"
#include "ingot/runtime/cuda/driver.h"
#include "ingot/runtime/dequant/dequant_operations.h"
#include "ingot/runtime/dequant/dequant_params.h"
#include "ingot/runtime/dequant/dequant_plans.h"
#include "ingot/runtime/gemm/gemm_params.h"
#include "ingot/runtime/gemm/gemm_tensors.h"
#include "ingot/runtime/jit/launcher.h"

namespace ingot::cuda {
namespace {

// Requires a spec that names its kernel and tiling. Null if the call was enqueued, else why the kernel does not support
// it.
const char* try_kernel(const DequantMatmulSpec& spec, const DequantMatmulTensors& tensors, Stream& stream,
                       Launcher& launcher) {
  if (spec.kernel == DequantKernel::sm90) {
    const char* reason = dequant_sm90_refusal(spec, tensors, launcher.target());
    if (reason == nullptr && !launcher.has_room(dequant_cluster(dequant_sm90_tiling(spec, *spec.tiling)), stream)) {
      reason = "the stream's part of the GPU has no room for the tiling's clusters";
    }
    if (reason == nullptr) dequant_sm90(spec, tensors, stream, launcher);
    return reason;
  }
  const char* const reason = dequant_mma_refusal(spec, tensors, launcher.target());
  if (reason == nullptr) dequant_mma(spec, tensors, stream, launcher);
  return reason;
}

}  // namespace

void dequant_matmul(const DequantMatmulSpec& spec, const DequantMatmulTensors& tensors, Stream& stream,
                    Launcher& launcher, DequantPlans& plans) {
  const MatmulSize size = dequant_size(tensors);
  if (size.m == 0 || size.n == 0) return;
  run_first(spec, plans.find(spec, planned_size(spec, tensors)),
            [&](const DequantMatmulSpec& named) { return try_kernel(named, tensors, stream, launcher); });
}

// Kernel mma (templates/dequant/dequant_mma.cuh), usually in one launch. If a tile's K is split, the
// stream's scratch memory holds the blocks' sums, and its zeros count the blocks that have arrived; the last block sets
// them back to zero. A split chosen for few tokens, as that of a batch-invariant matmul is, would need unlimited
// memory for many: so at most 64 MiB of sums exist at once (dequant_mma_slice()), and further tokens take further
// launches, which reuse that memory.
void dequant_mma(const DequantMatmulSpec& spec, const DequantMatmulTensors& tensors, Stream& stream,
                 Launcher& launcher) {
  const MatmulSize size = dequant_size(tensors);
  const DequantMmaTiling tiling = dequant_mma_tiling(spec);
  const auto split = static_cast<u32>(spec.tiling->split);
  const i64 slice = dequant_mma_slice(spec, size.m, size.n);
  const auto tiles = [&](i64 tokens) {
    return spec.experts ? dequant_mma_most_tiles(tiling, tokens, size.n, tensors.ends.experts)
                        : dequant_mma_tiles(tiling, tokens, size.n);
  };
  const i64 most_tiles = tiles(std::min<i64>(slice, size.m));
  void* parts = nullptr;
  void* arrived = nullptr;
  if (split > 1) {
    parts = stream.scratch(dequant_mma_parts_bytes(tiling, most_tiles, split));
    arrived = stream.zeros(static_cast<std::size_t>(most_tiles) * sizeof(u32));
  }
  for (i64 first = 0; first < size.m; first += slice) {
    const i64 count = std::min<i64>(slice, size.m - first);
    launcher.launch(spec, Pass::main,
                    {.grid_x = static_cast<unsigned>(tiles(count) * split),
                     .block = dequant_mma_threads(tiling),
                     .shared_bytes = dequant_mma_shared_bytes(tiling)},
                    dequant_mma_params(spec, tokens_of(spec, tensors, first, count), parts, arrived), stream);
  }
}

namespace {

// Kernel sm90 (templates/dequant/dequant_sm90.cuh): one launch of as many persistent clusters as run
// at once. The tensor map of x is encoded into the kernel's parameters. Stream-K uses the stream's scratch memory for
// partial tiles that blocks hand to each other, and its zeros for flags.

static_assert(sizeof(TensorMap) == sizeof(CUtensorMap) && alignof(TensorMap) >= alignof(CUtensorMap));

// Reads outside x give zeros. A single row may have any stride.
void encode_x(TensorMap& map, const Tensor& x, u32 tokens, const Driver& driver) {
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(x.cols), static_cast<cuuint64_t>(x.rows)};
  const i64 stride = x.rows == 1 ? ceil_div(i64{x.cols}, i64{8}) * 8 : i64{x.row_stride};
  const cuuint64_t strides[] = {static_cast<cuuint64_t>(stride) * 2};
  const cuuint32_t extents[] = {kDequantPart, tokens};
  const cuuint32_t steps[] = {1, 1};
  driver.check(driver.api().cuTensorMapEncodeTiled(
                   reinterpret_cast<CUtensorMap*>(&map), CU_TENSOR_MAP_DATA_TYPE_UINT16, 2, x.data, sizes, strides,
                   extents, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                   CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
               "cuTensorMapEncodeTiled");
}

}  // namespace

void dequant_sm90(const DequantMatmulSpec& spec, const DequantMatmulTensors& tensors, Stream& stream,
                  Launcher& launcher) {
  const DequantSm90Tiling tiling = dequant_sm90_tiling(spec, *spec.tiling);
  const MatmulSize size = dequant_size(tensors);
  const auto m = static_cast<u32>(size.m);
  const auto n = static_cast<u32>(size.n);
  const auto k = static_cast<u32>(size.k);
  LaunchShape launch{.block = dequant_threads(tiling, dequant_sm90_factors(spec)),
                     .cluster = dequant_cluster(tiling),
                     .shared_bytes = dequant_sm90_launch_bytes(spec, *spec.tiling, tiling.blocks_per_sm)};
  const Kernel& kernel = launcher.kernel(spec, Pass::main, stream);
  const u32 at_once = kernel.clusters_at_once(launch);
  const StreamKSplit split =
      tiling.stream_k ? stream_k_split_at_once(dequant_work(tiling, m, n, k), at_once) : StreamKSplit{};
  launch.grid_x = tiling.stream_k ? split.blocks
                  : spec.experts  ? dequant_expert_blocks(tiling, m, n, static_cast<u32>(tensors.ends.experts), at_once)
                                  : dequant_blocks(tiling, m, n, at_once);
  // (Larger clusters find less room, because they cannot span the GPU's processing clusters.)
  if (tiling.blocks_per_sm > 1 && launch.cluster <= 2 &&
      launch.grid_x * tiling.blocks_per_sm <= at_once * launch.cluster)
    launch.shared_bytes = dequant_sm90_launch_bytes(spec, *spec.tiling, 1);
  DequantSm90Params params{.x = {},
                           .weights = static_cast<const u8*>(tensors.weight.data),
                           .factors = tensors.scale_inv.data,
                           .bias = tensors.bias.data,
                           .out = tensors.out.data,
                           .out_stride = tensors.out.row_stride,
                           .m = m,
                           .n = n,
                           .k = k,
                           .factor_stride = static_cast<u32>(scale_inv_strides(spec.scale, size.k).row),
                           .constant_weight = tensors.constant_weight ? 1U : 0U,
                           .epilogue = epilogue_params(tensors),
                           .cut = {},
                           .experts = expert_params(spec, tensors)};
  if (tiling.stream_k) {
    const std::size_t bytes = stream_k_bytes(split, dequant_sum_bytes(tiling));
    void* const parts = bytes == 0 ? nullptr : stream.scratch(bytes);
    params.cut = stream_k_params(split, parts, dequant_sum_warps(tiling), stream);
  }
  encode_x(params.x, tensors.x, dequant_x_box(tiling, m), launcher.driver());
  launcher.launch(kernel, spec, Pass::main, launch, params, stream);
}

void pack_weight(const PackWeightSpec& spec, const PackWeightTensors& tensors, Stream& stream, Launcher& launcher) {
  const Tensor& codes = tensors.codes;
  const PackWeightParams params{.codes = static_cast<u8*>(codes.data),
                                .n = codes.rows,
                                .k = codes.cols,
                                .row_bytes = codes.row_stride * bits_of(spec.weight) / 8,
                                .packed = static_cast<u8*>(tensors.packed.data)};
  if (params.n == 0) return;
  if (!spec.unpack) {
    launcher.launch(spec, Pass::main, PackWeightLaunch::grid(params.n), PackWeightLaunch::kThreads, params, stream);
  } else if (params.k != 0) {
    launcher.launch(spec, Pass::main, UnpackWeightLaunch::grid(params.n, params.k), UnpackWeightLaunch::kThreads,
                    params, stream);
  }
}

}  // namespace ingot::cuda
