// One launch; the tile is the spec's or what suits the shape.
#include "ingot/codegen/candidates.h"
#include "ingot/runtime/cuda/gemm_mma_params.h"
#include "ingot/runtime/cuda/operations.h"

namespace ingot::cuda {

void gemm_mma(const GemmSpec& spec, const GemmTensors& tensors, const GemmShape& shape, const Stream& stream,
              Launcher& launcher) {
  GemmSpec chosen = spec;
  chosen.kernel = GemmKernel::mma;
  chosen.tiling = choose_mma_tiling(spec, {.m = shape.m, .n = shape.n, .k = shape.k}, launcher.multiprocessors());
  const MmaTiling tiling{.m = static_cast<u32>(chosen.tiling->m), .n = static_cast<u32>(chosen.tiling->n)};
  launcher.launch(chosen, Pass::main,
                  {.grid_x = static_cast<unsigned>(mma_blocks(tiling, shape.m, shape.n)),
                   .block = mma_threads(tiling),
                   .shared_bytes = mma_shared_bytes(tiling)},
                  gemm_mma_params(spec, tensors, shape), stream);
}

}  // namespace ingot::cuda
