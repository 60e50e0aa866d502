// How many blocks of a kernel a GPU has room for, for grids of one wave.
#pragma once

#include "ingot/runtime/jit/kernel.h"
#include "ingot/runtime/jit/launcher.h"

#include "cast/amax.cuh"

namespace ingot::cuda {

// The blocks of a kernel, without dynamic shared memory, that the GPU runs at once.
inline i64 blocks_at_once(const Kernel& kernel, u32 threads, const Launcher& launcher) {
  constexpr i64 kTaken = 1024;  // bytes of shared memory, from each block
  const KernelResources& resources = kernel.resources();
  const i64 by_shared = (launcher.block_shared_bytes() + kTaken) / (resources.static_shared_bytes + kTaken);
  return launcher.multiprocessors() * max_of(i64{1}, min_of(resident_blocks(resources.registers, threads), by_shared));
}

}  // namespace ingot::cuda
