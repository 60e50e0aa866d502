// How elementwise, float_quantize and quantize_mx, which visit each Vec8 (vec8.cuh) of a matrix once, divide the
// matrix: a block takes a tile, each of its threads 8 neighbouring columns in several rows. The grid has two
// dimensions, columns along x, so that a block finds its tile without a division; where rows of tiles outnumber the
// grid's, it then takes another tile.
#pragma once

#include "platform.cuh"
#include "vec8.cuh"

namespace ingot {

struct Vec8Tiles {
  static constexpr u32 kThreads = 256;
  static constexpr u32 kThreadsLog2 = 8;
  static constexpr i64 kMaxBlocksDown = 65535;  // along y, as CUDA limits them
  // Rows per thread: 64 bytes of each matrix.
  INGOT_HOST_DEVICE static constexpr u32 rows_log2(u64 value_bytes) { return value_bytes == 4 ? 1 : 2; }
  INGOT_HOST_DEVICE static constexpr u32 rows(u64 value_bytes) { return 1U << rows_log2(value_bytes); }
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
  INGOT_HOST_DEVICE static constexpr u32 tile_cols_log2(u32 across_log2) { return across_log2 + 3; }  // of kVec8
  INGOT_HOST_DEVICE static constexpr u32 tile_rows_log2(u32 across_log2, u64 value_bytes) {
    return rows_log2(value_bytes) + kThreadsLog2 - across_log2;
  }
  INGOT_HOST_DEVICE static constexpr i64 tile_cols(u32 across_log2) { return i64{1} << tile_cols_log2(across_log2); }
  INGOT_HOST_DEVICE static constexpr i64 tile_rows(u32 across_log2, u64 value_bytes) {
    return i64{1} << tile_rows_log2(across_log2, value_bytes);
  }
  struct Grid {
    i64 x, y;  // blocks
  };
  INGOT_HOST_DEVICE static constexpr Grid grid_of(i64 rows, i64 cols, u64 value_bytes, u32 across_log2) {
    return {ceil_div(cols, tile_cols(across_log2)),
            min_of(kMaxBlocksDown, ceil_div(rows, tile_rows(across_log2, value_bytes)))};
  }
  INGOT_HOST_DEVICE static constexpr Grid grid(i64 rows, i64 cols, u64 value_bytes) {
    return grid_of(rows, cols, value_bytes, across_log2(cols));
  }
};

// Calls body(first row, first column) for each of the block's tiles. All threads of the block get the same tiles.
template <class Body>
INGOT_DEVICE void for_each_tile(i64 rows, u32 value_bytes, u32 across_log2, Body body) {
  const u32 rows_log2 = Vec8Tiles::tile_rows_log2(across_log2, value_bytes);
  const i64 first_col = i64{blockIdx.x} << Vec8Tiles::tile_cols_log2(across_log2);
  INGOT_UNROLL_BY(1)
  for (i64 first_row = i64{blockIdx.y} << rows_log2; first_row < rows; first_row += i64{gridDim.y} << rows_log2) {
    body(first_row, first_col);
  }
}

}  // namespace ingot
