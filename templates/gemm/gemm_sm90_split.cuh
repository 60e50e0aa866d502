// Where stream-K (stream_k.cuh) cuts the tiles of gemm_sm90: constant arithmetic shared by the kernel, its launch and
// the cost model.
#pragma once

#include "gemm/gemm_sm90_tiling.cuh"
#include "gemm/stream_k.cuh"
#include "platform.cuh"

namespace ingot {

// Before a tile's last kSm90Spare steps its owner adds the other blocks' parts.
inline constexpr u32 kSm90Spare = 2;

// step: elements along K in a stage.
INGOT_HOST_DEVICE constexpr u32 sm90_steps(u32 k, u32 step = kSm90Depth) { return ceil_div(k, step); }
INGOT_HOST_DEVICE constexpr u32 sm90_spare(u32 steps) { return min_of(kSm90Spare, steps - 1); }

// Requires K > 0.
INGOT_HOST_DEVICE constexpr StreamKWork sm90_work(const Sm90Tiling& t, u32 m, u32 n, u32 k, u32 step = kSm90Depth) {
  const u32 steps = sm90_steps(k, step);
  return {.tiles = sm90_tiles_m(t, m) * sm90_tiles_n(t, n), .steps = steps, .spare = sm90_spare(steps)};
}

// Memory in addition to the operands: for each block one part, as its threads hold it, and a flag for each warp that
// has sums.
inline constexpr u32 kSm90Warps = 8;
INGOT_HOST_DEVICE constexpr u64 sm90_part_bytes(const Sm90Tiling& t) { return u64{t.m} * t.n * 4; }

}  // namespace ingot
