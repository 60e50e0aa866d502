// Casts matrices of one size that stand one after the other, such as the weights of a mixture of experts, with one
// launch per pass. Every matrix has its own scales. The kernels are those of a list (cast_list.cuh), but the parameters
// of a matrix follow from its index, so that nothing has to be in device memory before the launch.
#pragma once

#include "cast/cast_list.cuh"
#include "cast/cast_tile_shared.cuh"
#include "platform.cuh"

namespace ingot {

struct CastStackParams {
  static constexpr u32 kWords = sizeof(CastTilesParams) / sizeof(u64);
  CastTilesParams first;  // of the first matrix
  // How much each word of 8 bytes of `first` grows from one matrix to the next: the bytes between what pointers point
  // to, otherwise 0.
  i64 steps[kWords];
  u32 tiles;  // of each matrix; the grid has those of all
};

// As enter_tile() of a list. The matrices have their tiles one after the other.
INGOT_DEVICE u32 enter_tile(const CastStackParams& stack, u32 index, CastTilesParams& params) {
  constexpr u32 kWords = CastStackParams::kWords;
  static_assert(sizeof(CastTilesParams) % sizeof(u64) == 0 && kWords <= CastTilesLaunch::kThreads);
  const u32 matrix = index / stack.tiles;
  const auto* const first = reinterpret_cast<const u64*>(&stack.first);
  auto* const target = reinterpret_cast<u64*>(&params);
  if (threadIdx.x < kWords) {
    target[threadIdx.x] = first[threadIdx.x] + static_cast<u64>(stack.steps[threadIdx.x] * i64{matrix});
  }
  __syncthreads();
  return index - matrix * stack.tiles;
}

template <class Source, CastConfig C>
INGOT_KERNEL void INGOT_LAUNCH_BOUNDS(CastTilesLaunch::kThreads, (cast_list_maxima_residency<Source>()))
    cast_stack_maxima(const __grid_constant__ CastStackParams stack) {
  start_in_turn();
  find_listed_maxima<Source, C>(stack);
}

template <class Source, Fp8Format Out, CastConfig C>
INGOT_KERNEL void INGOT_LAUNCH_BOUNDS(CastTilesLaunch::kThreads, (cast_list_residency<Source, Out, C>()))
    cast_stack(const __grid_constant__ CastStackParams stack) {
  cast_listed_tile<Source, Out, C>(stack);
}

}  // namespace ingot
