// The coordinates of a thread of dequant_sm90 that multiplies: its place in the block, and its rows of a tile.
#pragma once

#include "dequant/dequant_sm90_tiling.cuh"
#include "platform.cuh"

namespace ingot {

#if INGOT_ON_DEVICE
template <DequantSm90Tiling T>
struct DequantPosition {
  static constexpr u32 kRowGroups = T.groups / T.k_warps;  // warpgroups with different rows

  u32 rows;   // index among the warpgroups with different rows
  u32 piece;  // index among the warpgroups with the same rows
  u32 warp;   // in the block
  u32 lane;

  INGOT_DEVICE explicit DequantPosition(u32 warpgroup)
      : rows(warpgroup % kRowGroups), piece(warpgroup / kRowGroups), warp(threadIdx.x / 32), lane(threadIdx.x % 32) {}
};
#endif

}  // namespace ingot
