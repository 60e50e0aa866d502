// A cast with dynamic scales of whole tensors, rows or columns in one launch, for a matrix so small that all its tiles
// are on the GPU at once. Each block holds its tile in registers, raises the maxima, waits until all blocks have done
// so, and casts its tile. Compared with one pass for the maxima and another for the codes (amax.cuh, cast_tiles.cuh) it
// saves a launch and the second reading. The blocks wait for each other, so the launch is one cluster, or a cooperative
// launch.
#pragma once

#include "cast/amax.cuh"
#include "cast/cast_tiles.cuh"
#include "platform.cuh"
#include "ptx/cluster.cuh"

namespace ingot {

struct CastWholeParams {
  CastTilesParams cast;  // it raises the maxima and then reads them: zeros before and after
  // [2], likewise zeros: counters of the blocks that have arrived and left. Null: the launch is one cluster.
  u32* barrier;
};

struct CastWholeLaunch {
  static constexpr i64 kMostPerMultiprocessor = 3;  // blocks for which any of these kernels has room
  static constexpr i64 kMostInCluster = 8;          // blocks for which every GPU with clusters has room
  INGOT_HOST_DEVICE static constexpr i64 per_multiprocessor(i64 registers) {
    return resident_blocks(registers, CastTilesLaunch::kThreads);
  }
};

// A barrier for all blocks of a launch. A cluster has its own barrier, which is faster than a word in the L2
// (docs/notes/casts.md).
struct GridBarrier {
  u32* words;

  // Arrives. What the block has done so far is visible to every block that has waited.
  INGOT_DEVICE void arrive() const {
    if (words == nullptr) return arrive_at_cluster();
    __syncthreads();
    if (threadIdx.x != 0) return;
    __threadfence();
    atomicAdd(words, 1);
  }
  INGOT_DEVICE void wait() const {
    if (words == nullptr) return wait_for_cluster();
    if (threadIdx.x == 0) {
      while (load_acquire(words) < gridDim.x) {}
    }
    __syncthreads();
  }
  // Leaves. The last block to leave sets the counter to zero.
  INGOT_DEVICE void leave() const {
    if (words != nullptr && threadIdx.x == 0 && atomicInc(words + 1, gridDim.x - 1) == gridDim.x - 1) words[0] = 0;
  }

 private:
  INGOT_DEVICE static void arrive_at_cluster() {
#if INGOT_ON_DEVICE
    if constexpr (kDeviceArch >= 900) ptx::cluster_arrive();
#endif
  }
  INGOT_DEVICE static void wait_for_cluster() {
#if INGOT_ON_DEVICE
    if constexpr (kDeviceArch >= 900) ptx::cluster_wait();
#endif
  }
};

// As cast_tiles, but if a tile has two scales, or two matrices that cast_tiles takes by halves, at most two blocks, and
// one for f32: the values that a block holds while it waits take registers too, and it takes by halves only those that
// it also writes and sums.
template <class Source, Fp8Format Out, CastConfig C>
INGOT_HOST_DEVICE constexpr u32 cast_whole_residency() {
  constexpr u32 kAlone = cast_tiles_residency<Source, Out, C>();
  constexpr u32 kMost = sizeof(typename Source::Value) == 4 ? 1 : 2;
  return has_two_scales(C) || works_by_halves<Source, Out, C>() ? min_of(kMost, kAlone) : kAlone;
}

template <class Source, Fp8Format Out, CastConfig C>
INGOT_KERNEL void INGOT_LAUNCH_BOUNDS(CastTilesLaunch::kThreads, (cast_whole_residency<Source, Out, C>()))
    cast_whole(const __grid_constant__ CastWholeParams p) {
  __shared__ CastTilesShared shared;
  const GridBarrier barrier{p.barrier};
  static_assert(!C.given_scales && (from_pass(C.codes) || from_pass(C.transposed)));
  cast_tile<Source, Out, C>(p.cast, blockIdx.x, shared, barrier);
  barrier.leave();
}

}  // namespace ingot
