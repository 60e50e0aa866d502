// Grouped GEMMs: the rows of A are those of experts, one expert after the other, and each expert has its own B. (An
// expert, because a group is what shares a scale_inv.) Device memory says where an expert's rows end; this is how a
// block finds its tiles from it: constant arithmetic shared by the kernel, its launch and its tests.
//
// With a capacity C > 0, rows e * C to (e + 1) * C belong to expert e, and device memory says how many of them it uses.
#pragma once

#include "gemm/gemm_sm90_tiling.cuh"
#include "platform.cuh"

namespace ingot {

// The row at which an expert's rows end. Whatever device memory holds, it is within the matrix and, with a capacity,
// within the expert's own rows. An expert's first row (sm90_first_row()) is not before the end of the expert before it,
// and its end (sm90_next_row()) not before its first row. So no row has two experts and none is outside.
INGOT_HOST_DEVICE constexpr u32 sm90_row_end(i32 end, u32 rows, u32 expert, u32 capacity) {
  return expert * capacity + min_of(static_cast<u32>(max_of(end, 0)), capacity == 0 ? rows : capacity);
}
INGOT_HOST_DEVICE constexpr u32 sm90_first_row(u32 before, u32 expert, u32 capacity) {
  return max_of(before, expert * capacity);
}
INGOT_HOST_DEVICE constexpr u32 sm90_next_row(u32 row, u32 end) { return max_of(row, end); }

// Cluster tiles of an expert with that many rows.
INGOT_HOST_DEVICE constexpr u32 sm90_expert_tiles(const Sm90Tiling& t, u32 rows, u32 n) {
  return sm90_tiles_m(t, rows) * sm90_tiles_n(t, n);
}

// Blocks to launch. The host does not know where experts end: each may have a tile that is not full.
INGOT_HOST_DEVICE constexpr u32 sm90_grouped_blocks(const Sm90Tiling& t, u32 m, u32 n, u32 experts,
                                                    u32 multiprocessors) {
  const u32 size = sm90_cluster_size(t);
  const u64 most = (u64{m / (t.m * t.cluster_m)} + min_of(experts, m)) * sm90_tiles_n(t, n);
  return static_cast<u32>(min_of(most, u64{max_of(multiprocessors / size, 1U)})) * size;
}

// Rows of A that a block loads at a time of a tile that its expert's rows do not fill.
INGOT_HOST_DEVICE constexpr u32 sm90_expert_box(const Sm90Tiling& t) { return t.m / 4; }

// For each expert, where its rows and its tiles end. A block has one in its shared memory.
struct Sm90ExpertTable {
  u32* row_ends = nullptr;
  u32* tile_ends = nullptr;
  u32 experts = 0;
  u32 capacity = 0;

  INGOT_HOST_DEVICE u32 first_row(u32 expert) const {
    return expert == 0 ? 0 : sm90_first_row(row_ends[expert - 1], expert, capacity);
  }
  INGOT_HOST_DEVICE u32 first_tile(u32 expert) const { return expert == 0 ? 0 : tile_ends[expert - 1]; }
  INGOT_HOST_DEVICE u32 tiles() const { return tile_ends[experts - 1]; }

  // The expert of a tile, which is not before expert `from`.
  INGOT_HOST_DEVICE u32 expert_of(u32 tile, u32 from) const {
    u32 last = experts - 1;
    while (from < last) {
      const u32 middle = (from + last) / 2;
      if (tile_ends[middle] > tile) {
        last = middle;
      } else {
        from = middle + 1;
      }
    }
    return from;
  }

  // The first row and column of a tile of an expert, for the block with that rank in its cluster.
  template <Sm90Tiling T>
  INGOT_HOST_DEVICE Sm90TileIndex first(u32 tile, u32 expert, u32 n, u32 rank) const {
    const u32 row = first_row(expert);
    const Sm90TileIndex at =
        sm90_tile_index(tile - first_tile(expert), sm90_tiles_m(T, row_ends[expert] - row), sm90_tiles_n(T, n));
    return {row + (at.m * T.cluster_m + (T.cluster_m > 1 ? rank : 0)) * T.m,
            (at.n * T.cluster_n + (T.cluster_n > 1 ? rank : 0)) * T.n};
  }
};

// A lane's share in filling the table, whose row_ends hold sm90_row_end() of each expert. A warp's lanes pass on to
// each other where their experts end.
template <Sm90Tiling T>
struct Sm90ExpertShare {
  const Sm90ExpertTable& table;
  u32 n;
  u32 begin, end;  // experts

  INGOT_HOST_DEVICE Sm90ExpertShare(const Sm90ExpertTable& filled, u32 columns, u32 lane) : table(filled), n(columns) {
    const u32 share = ceil_div(filled.experts, 32U);
    begin = min_of(lane * share, filled.experts);
    end = min_of(begin + share, filled.experts);
  }

  // An expert's first row, if the experts before it end at `before`.
  INGOT_HOST_DEVICE u32 first_row(u32 before, u32 expert) const {
    return sm90_first_row(before, expert, table.capacity);
  }

  // The row at which the last of its experts ends, as far as these experts say.
  INGOT_HOST_DEVICE u32 last_row() const {
    u32 row = 0;
    for (u32 i = begin; i < end; ++i) row = sm90_next_row(row, table.row_ends[i]);
    return row;
  }

  // Its experts' tiles. row: where the experts before them end.
  INGOT_HOST_DEVICE u32 tiles(u32 row) const {
    u32 count = 0;
    for (u32 i = begin; i < end; ++i) {
      const u32 first = first_row(row, i);
      row = sm90_next_row(first, table.row_ends[i]);
      count += sm90_expert_tiles(T, row - first, n);
    }
    return count;
  }

  // Writes its part of the table. tile: the tiles of the experts before.
  INGOT_HOST_DEVICE void write(u32 row, u32 tile) const {
    for (u32 i = begin; i < end; ++i) {
      const u32 first = first_row(row, i);
      row = sm90_next_row(first, table.row_ends[i]);
      tile += sm90_expert_tiles(T, row - first, n);
      table.row_ends[i] = row;
      table.tile_ends[i] = tile;
    }
  }
};

}  // namespace ingot
