// gemm by kernel mma (templates/gemm/gemm_mma.cuh): one launch.
#include "ingot/runtime/gemm/gemm_operations.h"
#include "ingot/runtime/gemm/gemm_params.h"
#include "ingot/runtime/jit/launcher.h"
#include "ingot/runtime/stream.h"

namespace ingot::cuda {

void gemm_mma(const GemmSpec& spec, const GemmTensors& tensors, const MatmulSize& size, const Stream& stream,
              Launcher& launcher) {
  const MmaTiling tiling{.m = static_cast<u32>(spec.tiling->m), .n = static_cast<u32>(spec.tiling->n)};
  launcher.launch(spec, Pass::main,
                  {.grid_x = static_cast<unsigned>(mma_blocks(tiling, size.m, size.n)),
                   .block = mma_threads(tiling),
                   .shared_bytes = mma_shared_bytes(tiling)},
                  gemm_mma_params(spec, tensors, size), stream);
}

}  // namespace ingot::cuda
