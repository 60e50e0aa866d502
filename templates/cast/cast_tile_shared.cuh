// The parameters of cast_tiles.cuh, how it divides a matrix into tiles and a tile among threads, and what a block keeps
// in shared memory.
#pragma once

#include "cast/cast_output.cuh"
#include "cast/source.cuh"
#include "platform.cuh"
#include "reduce.cuh"
#include "vec8.cuh"

namespace ingot {

struct CastTilesLaunch {
  static constexpr u32 kThreads = 256;
  static constexpr u32 kTileLog2 = 7;
  static constexpr i64 kTile = i64{1} << kTileLog2;  // columns, and the most rows
  // A matrix without elements may still have rows or columns, with given scales: it has one empty tile across or down.
  INGOT_HOST_DEVICE static constexpr i64 tiles_along(i64 size) { return max_of(i64{1}, ceil_div(size, kTile)); }
  INGOT_HOST_DEVICE static constexpr i64 tiles_down(i64 rows, u32 rows_log2) {
    if (rows_log2 == kTileLog2) return tiles_along(rows);  // without it, ptxas spilled where this is a constant
    return max_of(i64{1}, (rows + (i64{1} << rows_log2) - 1) >> rows_log2);
  }
  INGOT_HOST_DEVICE static constexpr i64 grid(i64 rows, i64 cols) { return tiles_along(rows) * tiles_along(cols); }

  // log2 of the rows of a tile. Tiles have 64 rows if there are then no more tiles than multiprocessors: more of these
  // share the work. Half of each block's threads are idle. `least`: not if there are fewer tiles of 128 rows.
  static constexpr u32 kFewestRowsLog2 = kTileLog2 - 1;
  INGOT_HOST_DEVICE static constexpr u32 rows_log2(i64 rows, i64 cols, i64 multiprocessors, i64 least) {
    const bool fits = tiles_down(rows, kFewestRowsLog2) * tiles_along(cols) <= multiprocessors;
    return fits && grid(rows, cols) >= least ? kFewestRowsLog2 : kTileLog2;
  }

  // A block of an `unaligned` kernel takes two tiles, one below the other, if the GPU has work enough without: so it
  // has half as many seams with its neighbours. An expression takes longer, the seams no less: there it takes one; and
  // so it does with the sums of kept values, for which shared memory has room once.
  static constexpr u32 kMaxTilesPerBlock = 2;
  INGOT_HOST_DEVICE static constexpr bool takes_two(bool fused, bool unaligned, bool sums_of_kept) {
    return unaligned && !fused && !sums_of_kept;
  }
  // `resident`: the blocks that the GPU runs at once. Two tiles, unless blocks of two would leave more than a seventh
  // of their places empty, as they do where they fill few waves and the last only in part.
  INGOT_HOST_DEVICE static constexpr u32 tiles_per_block(i64 rows, i64 cols, i64 resident) {
    const i64 blocks = grid(rows, cols, kMaxTilesPerBlock);
    return blocks * 7 >= ceil_div(blocks, resident) * resident * 6 ? kMaxTilesPerBlock : 1;
  }
  INGOT_HOST_DEVICE static constexpr i64 grid(i64 rows, i64 cols, u32 tiles_per_block, u32 rows_log2 = kTileLog2) {
    return ceil_div(tiles_down(rows, rows_log2), i64{tiles_per_block}) * tiles_along(cols);
  }
};

struct CastTilesParams {
  // log2 of the rows of a tile: CastTilesLaunch::rows_log2(), if the kernel may_take_fewer_rows(). If that is less than
  // kTileLog2, tiles_per_block must be 1. It stands first because a kernel needs it first, with the size of the matrix.
  u32 rows_log2 = CastTilesLaunch::kTileLog2;
  SourceParams source;
  CastOutput codes, transposed;  // if both have the same scales, those of `codes` count
  void* result;                  // In[rows, cols], if Result
  i64 result_stride;             // elements
  float* partial_sums;           // [ceil(rows / 128), cols], if Sum
  bool pow2;
  u32 tiles_per_block = 1;  // CastTilesLaunch::tiles_per_block(), if the kernel takes_two()
};

// log2 of the rows of a tile, known at compile time if the kernel always takes 128.
template <CastConfig C, bool Syncs = false>
INGOT_DEVICE u32 rows_log2_of(const CastTilesParams& p) {
  return may_take_fewer_rows(C, Syncs) ? p.rows_log2 : CastTilesLaunch::kTileLog2;
}

// The order in which Sum adds, so that the CPU reference gives the same bits: the 8 rows of a run, ascending, from 0;
// the 16 runs of a tile, ascending, from 0; the tiles, ascending, from 0 (column_sum.cuh, column_sum_finish).
inline constexpr u32 kRowsPerRun = 8;

// The transposed tile in shared memory: 128 bytes per column, in 16-byte slots of 16 rows. Rows 16 s .. 16 s + 15 are
// in slot s ^ (column / 8 % 8), and the two halves of a slot are swapped in columns 64 and up. So the 16 threads that
// write 8 bytes together (16 column groups, the same rows) and the 8 threads that read 16 bytes together (one column)
// each use every bank once.
struct StagedTile {
  static constexpr u32 kColumnBytes = 128;
  static constexpr u32 kBytes = 128 * kColumnBytes;
  // The offset of rows 8 * group .. 8 * group + 7 of a column.
  INGOT_HOST_DEVICE static constexpr u32 half_slot(u32 col, u32 group) {
    return col * 128 + (((group / 2) ^ (col / 8 % 8)) * 16) + (((group % 2) ^ (col / 64)) * 8);
  }
  // The offset of rows 16 * index .. 16 * index + 15 of a column.
  INGOT_HOST_DEVICE static constexpr u32 slot(u32 col, u32 index) { return col * 128 + ((index ^ (col / 8 % 8)) * 16); }
  // half_slot(col + more, group) is (half_slot(col, group) ^ flips(more)) + more * kColumnBytes, where `more` is a
  // multiple of 8 that has no bit in common with col.
  INGOT_HOST_DEVICE static constexpr u32 flips(u32 more) { return more / 8 % 8 * 16 + more / 64 * 8; }
};

// A block's shared memory. `bytes` serves one purpose after the other: elements on their way in, column maxima, column
// sums, the transposed tile.
struct CastTilesShared {
  alignas(16) u8 bytes[StagedTile::kBytes];
  float scales[128];
  u32 warp_maxima[kMaxWarps];
};

// The position of a thread in its tile, and of the tile in the matrix.
struct TilePosition {
  i64 first_row, first_col;
  u32 rows, cols;  // of the tile, inside the matrix
  u32 row, col;    // the thread's first, counted from the tile's; the row may be past the tile
  u32 rows_log2;   // log2 of the rows of a tile
  u32 busy_rows;   // the rows that have busy threads: all of the tile's where other threads may skip, otherwise 128

  // `skips`: may threads whose rows are past a tile of fewer than 128 skip their part?
  INGOT_DEVICE static TilePosition of(const SourceParams& p, u32 tile, u32 rows_log2 = CastTilesLaunch::kTileLog2,
                                      bool skips = false) {
    constexpr i64 kTile = CastTilesLaunch::kTile;
    constexpr u32 kThreadsPerRow = static_cast<u32>(kTile) / kVec8;
    const u32 tiles_across = static_cast<u32>(CastTilesLaunch::tiles_along(p.cols));
    const i64 first_row = i64{tile / tiles_across} << rows_log2;
    const i64 first_col = i64{tile % tiles_across} * kTile;
    return {first_row,
            first_col,
            static_cast<u32>(min_of(i64{1} << rows_log2, p.rows - first_row)),
            static_cast<u32>(min_of(kTile, p.cols - first_col)),
            threadIdx.x / kThreadsPerRow * kRowsPerRun,
            threadIdx.x % kThreadsPerRow * kVec8,
            rows_log2,
            skips ? 1U << rows_log2 : static_cast<u32>(kTile)};
  }
  // Has every busy thread all its elements inside the matrix? Never in a tile of fewer than 128 rows without `skips`.
  INGOT_DEVICE bool whole() const { return rows == busy_rows && cols == CastTilesLaunch::kTile; }
  // May the thread skip its part, because its rows are past the tile's?
  INGOT_DEVICE bool idle() const { return row >= busy_rows; }
  // The index of the tile among those down the matrix.
  INGOT_DEVICE i64 tile_row() const { return first_row >> rows_log2; }
  // How many of the thread's 8 columns are inside the matrix.
  INGOT_DEVICE u32 width() const { return col >= cols ? 0 : min_of(kVec8, cols - col); }
};

}  // namespace ingot
