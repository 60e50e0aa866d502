// The tile coordinates of a thread of gemm_sm90 that multiplies: its place in the warpgroup, and its rows and columns
// of a tile.
#pragma once

#include "gemm/gemm_sm90_tiling.cuh"
#include "platform.cuh"

namespace ingot {

#if INGOT_ON_DEVICE
template <Sm90Tiling T>
struct Sm90Position {
  static constexpr bool kOwnRows = !T.pingpong && !sm90_shares_columns(T);  // own rows of a tile that all share
  static constexpr u32 kWaveRows = T.pingpong ? 64 : 128;                   // from one wave of a warpgroup to the next

  u32 group;   // warpgroup, from 0 on
  u32 thread;  // in the warpgroup
  u32 lane;

  INGOT_DEVICE explicit Sm90Position(u32 warpgroup)
      : group(warpgroup), thread(threadIdx.x % 128), lane(threadIdx.x % 32) {}

  INGOT_DEVICE u32 wave_row(u32 wave) const {
    return wave * kWaveRows + (kOwnRows ? group * 64 : 0) + thread / 32 * 16;
  }
  // Where the warpgroup's output of a tile begins.
  INGOT_DEVICE Sm90TileIndex own(const Sm90TileIndex& first) const {
    return {first.m, first.n + (sm90_shares_columns(T) ? group * sm90_columns(T) : 0)};
  }
};
#endif

}  // namespace ingot
