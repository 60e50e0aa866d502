// dequant_matmul by kernel mma (templates/dequant/dequant_mma.cuh), usually in one launch. If a tile's K is split, the
// stream's scratch memory holds the blocks' sums, and its zeros count the blocks that have arrived; the last block sets
// them back to zero. A split chosen for few tokens, as that of a batch-invariant matmul is, would need unlimited
// memory for many: so at most 64 MiB of sums exist at once (dequant_mma_slice()), and further tokens take further
// launches, which reuse that memory.
#include <algorithm>

#include "ingot/runtime/dequant/dequant_operations.h"
#include "ingot/runtime/dequant/dequant_params.h"
#include "ingot/runtime/dequant/dequant_shape.h"
#include "ingot/runtime/jit/launcher.h"
#include "ingot/runtime/stream.h"

namespace ingot::cuda {

void dequant_mma(const DequantMatmulSpec& spec, const DequantMatmulTensors& tensors, Stream& stream,
                 Launcher& launcher) {
  const MatmulSize size = dequant_size(tensors);
  const DequantMmaTiling tiling = dequant_mma_tiling(spec);
  const auto split = static_cast<u32>(spec.tiling->split);
  const i64 slice = dequant_mma_slice(spec, size.m, size.n);
  const i64 most_tiles = dequant_mma_tiles(tiling, std::min<i64>(slice, size.m), size.n);
  void* parts = nullptr;
  void* arrived = nullptr;
  if (split > 1) {
    parts = stream.scratch(dequant_mma_parts_bytes(tiling, most_tiles, split));
    arrived = stream.zeros(static_cast<std::size_t>(most_tiles) * sizeof(u32));
  }
  for (i64 first = 0; first < size.m; first += slice) {
    const i64 count = std::min<i64>(slice, size.m - first);
    launcher.launch(spec, Pass::main,
                    {.grid_x = static_cast<unsigned>(dequant_mma_tiles(tiling, count, size.n) * split),
                     .block = dequant_mma_threads(tiling),
                     .shared_bytes = dequant_mma_shared_bytes(tiling)},
                    dequant_mma_params(spec, tokens_of(spec, tensors, first, count), parts, arrived), stream);
  }
}

}  // namespace ingot::cuda
