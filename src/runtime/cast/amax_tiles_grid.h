// How many blocks amax_tiles gets on a GPU.
#pragma once

#include "ingot/runtime/jit/launcher.h"
#include "ingot/runtime/stream.h"
#include "ingot/runtime/tensor.h"

#include "cast/amax.cuh"

namespace ingot::cuda {

// `pass`: the spec's pass whose kernel is amax_tiles.
template <AnyKernelSpec Spec>
i64 amax_tiles_grid(const Spec& spec, Pass pass, const Tensor& input, const Stream& stream, const Launcher& launcher) {
  const i64 registers = launcher.kernel(spec, pass, stream).resources().registers;
  const i64 resident = launcher.multiprocessors() * resident_blocks(registers, AmaxTilesLaunch::kThreads);
  return AmaxTilesLaunch::grid(input.rows, input.cols, resident);
}

}  // namespace ingot::cuda
