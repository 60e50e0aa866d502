// How elementwise, float_quantize and quantize_mx, which visit each Vec8 (vec8.cuh) of a matrix once, divide the
// matrix: a block takes a tile, each of its threads 8 neighbouring columns in several rows; where tiles outnumber
// blocks, a block then takes another tile.
#pragma once

#include "platform.cuh"
#include "vec8.cuh"

namespace ingot {

struct Vec8Tiles {
  static constexpr u32 kThreads = 256;
  static constexpr u32 kThreadsLog2 = 8;
  static constexpr i64 kMaxBlocks = 0x7fffffff;
  // Rows per thread: 64 bytes of each matrix.
  INGOT_HOST_DEVICE static constexpr u32 rows(u64 value_bytes) { return value_bytes == 4 ? 2 : 4; }
  // log2 of the threads side by side: 8 threads if the matrix is wide enough, more where that leaves few of them
  // without columns.
  INGOT_HOST_DEVICE static constexpr u32 across_log2(i64 cols) {
    const i64 vec8s = ceil_div(cols, i64{kVec8});
    u32 log2 = 0;
    while (log2 < 3 && (i64{1} << log2) < vec8s) ++log2;
    for (u32 wider = log2 + 1; wider <= kThreadsLog2; ++wider) {
      const i64 idle = (ceil_div(vec8s, i64{1} << wider) << wider) - vec8s;
      if (idle * 16 <= vec8s) log2 = wider;
    }
    return log2;
  }
  INGOT_HOST_DEVICE static constexpr i64 tile_cols(u32 across_log2) { return i64{kVec8} << across_log2; }
  INGOT_HOST_DEVICE static constexpr i64 tile_rows(u32 across_log2, u64 value_bytes) {
    return i64{rows(value_bytes)} << (kThreadsLog2 - across_log2);
  }
  INGOT_HOST_DEVICE static constexpr i64 grid_of(i64 rows, i64 cols, u64 value_bytes, u32 across_log2) {
    return min_of(kMaxBlocks,
                  ceil_div(rows, tile_rows(across_log2, value_bytes)) * ceil_div(cols, tile_cols(across_log2)));
  }
  INGOT_HOST_DEVICE static constexpr i64 grid(i64 rows, i64 cols, u64 value_bytes) {
    return grid_of(rows, cols, value_bytes, across_log2(cols));
  }
};

// Calls body(first row, first column) for each of the block's tiles, in the order of the grid. All threads of the block
// get the same tiles.
template <class Body>
INGOT_DEVICE void for_each_tile(i64 rows, i64 cols, i64 tile_rows, i64 tile_cols, Body body) {
  const u32 strips = static_cast<u32>(ceil_div(cols, tile_cols));
  const u32 band_step = gridDim.x / strips;
  const u32 strip_step = gridDim.x % strips;
  u32 strip = blockIdx.x % strips;
  INGOT_UNROLL_BY(1)
  for (i64 band = blockIdx.x / strips; band * tile_rows < rows; band += band_step) {
    body(band * tile_rows, strip * tile_cols);
    strip += strip_step;
    if (strip >= strips) {
      strip -= strips;
      ++band;
    }
  }
}

}  // namespace ingot
