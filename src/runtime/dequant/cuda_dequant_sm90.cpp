// dequant_matmul by kernel sm90 (templates/dequant/dequant_sm90.cuh): one launch of as many persistent clusters as run
// at once. The tensor map of x is encoded into the kernel's parameters. Stream-K uses the stream's scratch memory for
// partial tiles that blocks hand to each other, and its zeros for flags.
#include "ingot/codegen/dequant/dequant_sm90.h"
#include "ingot/runtime/cuda/driver.h"
#include "ingot/runtime/cuda/driver_api.h"
#include "ingot/runtime/dequant/dequant_operations.h"
#include "ingot/runtime/dequant/dequant_params.h"
#include "ingot/runtime/dequant/dequant_shape.h"
#include "ingot/runtime/gemm/gemm_shape.h"
#include "ingot/runtime/gemm/stream_k_params.h"
#include "ingot/runtime/jit/launcher.h"
#include "ingot/runtime/stream.h"

#include "dequant/dequant_sm90.cuh"

namespace ingot::cuda {
namespace {

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
  const DequantSm90Tiling tiling = dequant_sm90_tiling(*spec.tiling);
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
  launch.grid_x = tiling.stream_k ? split.blocks : dequant_blocks(tiling, m, n, at_once);
  // (Larger clusters find less room, because they cannot span the GPU's processing clusters.)
  if (tiling.blocks_per_sm > 1 && launch.cluster <= 2 &&
      launch.grid_x * tiling.blocks_per_sm <= at_once * launch.cluster)
    launch.shared_bytes = dequant_sm90_launch_bytes(spec, *spec.tiling, 1);
  DequantSm90Params params{.x = {},
                           .weights = static_cast<const u8*>(tensors.weight.data),
                           .factors = tensors.factors.data,
                           .bias = tensors.bias.data,
                           .out = tensors.out.data,
                           .out_stride = tensors.out.row_stride,
                           .m = m,
                           .n = n,
                           .k = k,
                           .factor_stride = static_cast<u32>(factor_strides(spec.scale, size.k).row),
                           .constant_weight = tensors.constant_weight ? 1U : 0U,
                           .epilogue = epilogue_params(tensors),
                           .cut = {}};
  if (tiling.stream_k) {
    const std::size_t bytes = stream_k_bytes(split, dequant_sum_bytes(tiling));
    void* const parts = bytes == 0 ? nullptr : stream.scratch(bytes);
    params.cut = stream_k_params(split, parts, dequant_sum_warps(tiling), stream);
  }
  encode_x(params.x, tensors.x, dequant_x_box(tiling, m), launcher.driver());
  launcher.launch(kernel, spec, Pass::main, launch, params, stream);
}

}  // namespace ingot::cuda
