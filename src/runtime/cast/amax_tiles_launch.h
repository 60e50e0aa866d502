// The launch of amax_tiles, for amax and for the first pass of a cast.
#pragma once

#include "ingot/runtime/cast/blocks_at_once.h"
#include "ingot/runtime/jit/launcher.h"
#include "ingot/runtime/stream.h"

#include "cast/amax.cuh"

namespace ingot::cuda {

// `pass`: the spec's pass whose kernel is amax_tiles.
template <AnyKernelSpec Spec>
void launch_amax_tiles(const Spec& spec, Pass pass, const AmaxTilesParams& params, const Stream& stream,
                       Launcher& launcher) {
  const Kernel& kernel = launcher.kernel(spec, pass, stream);
  const i64 resident = blocks_at_once(kernel, AmaxTilesLaunch::kThreads, launcher);
  const i64 grid = AmaxTilesLaunch::grid(params.source.rows, params.source.cols, resident);
  launcher.launch(kernel, spec, pass, {.grid_x = Launcher::checked_grid(grid), .block = AmaxTilesLaunch::kThreads},
                  params, stream);
}

}  // namespace ingot::cuda
