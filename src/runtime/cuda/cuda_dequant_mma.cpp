// One launch. Where a tile's K is split, the stream's scratch memory holds the blocks' sums, and its zeros count who
// has come; the last one leaves them as zeros.
#include "ingot/runtime/cuda/dequant_params.h"
#include "ingot/runtime/cuda/operations.h"
#include "ingot/runtime/dequant_shape.h"

namespace ingot::cuda {

void dequant_mma(const DequantMatmulSpec& spec, const DequantMatmulTensors& tensors, Stream& stream,
                 Launcher& launcher) {
  const DequantShape shape = dequant_shape(tensors);
  const DequantMmaTiling tiling{.tokens = static_cast<u32>(spec.tiling->tokens),
                                .rows = static_cast<u32>(spec.tiling->rows),
                                .k_warps = static_cast<u32>(spec.tiling->k_warps)};
  const auto split = static_cast<u32>(spec.tiling->split);
  const i64 tiles = dequant_mma_tiles(tiling, shape.m, shape.n);
  void* parts = nullptr;
  void* arrived = nullptr;
  if (split > 1) {
    parts = stream.scratch(dequant_mma_parts_bytes(tiling, tiles, split));
    arrived = stream.zeros(static_cast<std::size_t>(tiles) * sizeof(u32));
  }
  launcher.launch(spec, Pass::main,
                  {.grid_x = static_cast<unsigned>(tiles * split),
                   .block = dequant_mma_threads(tiling),
                   .shared_bytes = dequant_mma_shared_bytes(tiling)},
                  dequant_mma_params(spec, tensors, parts, arrived), stream);
}

}  // namespace ingot::cuda
