// The rows of experts: the rows of a matrix are those of experts, one expert after the other, and device memory says
// where each expert's end. How a block finds, from that, the tiles that it works on: each expert's tiles follow those
// of the expert before it. Shared by kernels of all tilings and, as constant arithmetic, by their tests.
//
// With a capacity C > 0, rows e * C to (e + 1) * C belong to expert e, and device memory says how many of them it uses.
#pragma once

#include "platform.cuh"

namespace ingot {

// The most experts that a table has; each takes 8 bytes of shared memory.
inline constexpr u32 kExpertTableMost = 512;
inline constexpr u32 kExpertTableBytes = 8 * kExpertTableMost;

// The row at which an expert's rows end. Whatever device memory holds, it is within the matrix and, with a capacity,
// within the expert's own rows. An expert's first row (expert_first_row()) is not before the end of the expert before
// it, and its end (expert_next_row()) not before its first row. So no row has two experts and none is outside.
INGOT_HOST_DEVICE constexpr u32 expert_row_end(i32 end, u32 rows, u32 expert, u32 capacity) {
  return expert * capacity + min_of(static_cast<u32>(max_of(end, 0)), capacity == 0 ? rows : capacity);
}
INGOT_HOST_DEVICE constexpr u32 expert_first_row(u32 before, u32 expert, u32 capacity) {
  return max_of(before, expert * capacity);
}
INGOT_HOST_DEVICE constexpr u32 expert_next_row(u32 row, u32 end) { return max_of(row, end); }

// For each expert, where its rows and its tiles end. A block has one in its shared memory.
struct ExpertTable {
  u32* row_ends = nullptr;
  u32* tile_ends = nullptr;
  u32 experts = 0;
  u32 capacity = 0;

  INGOT_HOST_DEVICE u32 first_row(u32 expert) const {
    return expert == 0 ? 0 : expert_first_row(row_ends[expert - 1], expert, capacity);
  }
  INGOT_HOST_DEVICE u32 rows(u32 expert) const { return row_ends[expert] - first_row(expert); }
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
};

// A lane's share in filling the table, whose row_ends hold expert_row_end() of each expert. A warp's lanes pass on to
// each other where their experts end. Tiles: a function that says how many tiles an expert with so many rows has.
template <class Tiles>
struct ExpertShare {
  const ExpertTable& table;
  Tiles tiles_of;
  u32 begin, end;  // experts

  INGOT_HOST_DEVICE ExpertShare(const ExpertTable& filled, Tiles of_rows, u32 lane) : table(filled), tiles_of(of_rows) {
    const u32 share = ceil_div(filled.experts, 32U);
    begin = min_of(lane * share, filled.experts);
    end = min_of(begin + share, filled.experts);
  }

  // An expert's first row, if the experts before it end at `before`.
  INGOT_HOST_DEVICE u32 first_row(u32 before, u32 expert) const {
    return expert_first_row(before, expert, table.capacity);
  }

  // The row at which the last of its experts ends, as far as these experts say.
  INGOT_HOST_DEVICE u32 last_row() const {
    u32 row = 0;
    for (u32 i = begin; i < end; ++i) row = expert_next_row(row, table.row_ends[i]);
    return row;
  }

  // Its experts' tiles. row: where the experts before them end.
  INGOT_HOST_DEVICE u32 tiles(u32 row) const {
    u32 count = 0;
    for (u32 i = begin; i < end; ++i) {
      const u32 first = first_row(row, i);
      row = expert_next_row(first, table.row_ends[i]);
      count += tiles_of(row - first);
    }
    return count;
  }

  // Writes its part of the table. tile: the tiles of the experts before.
  INGOT_HOST_DEVICE void write(u32 row, u32 tile) const {
    for (u32 i = begin; i < end; ++i) {
      const u32 first = first_row(row, i);
      row = expert_next_row(first, table.row_ends[i]);
      tile += tiles_of(row - first);
      table.row_ends[i] = row;
      table.tile_ends[i] = tile;
    }
  }
};

// What all lanes before this one have, joined: their maximum or their sum.
template <bool Sum>
INGOT_DEVICE u32 join_lanes_before(u32 value, u32 lane) {
  INGOT_UNROLL
  for (u32 apart = 1; apart < 32; apart *= 2) {
    const u32 other = __shfl_up_sync(0xffffffffU, value, apart);
    if (lane >= apart) value = Sum ? value + other : max_of(value, other);
  }
  const u32 before = __shfl_up_sync(0xffffffffU, value, 1);
  return lane == 0 ? 0 : before;
}

// Fills the table from device memory; all threads of the block call it. rows: of the matrix.
template <class Tiles>
INGOT_DEVICE void fill_expert_table(const ExpertTable& table, const i32* ends, u32 rows, u32 threads, Tiles tiles_of) {
  INGOT_UNROLL_BY(1)
  for (u32 i = threadIdx.x; i < table.experts; i += threads) {
    table.row_ends[i] = expert_row_end(ends[i], rows, i, table.capacity);
  }
  __syncthreads();
  if (threadIdx.x < 32) {
    const ExpertShare<Tiles> share(table, tiles_of, threadIdx.x);
    const u32 row = join_lanes_before<false>(share.last_row(), threadIdx.x);
    const u32 tile = join_lanes_before<true>(share.tiles(row), threadIdx.x);
    share.write(row, tile);
  }
  __syncthreads();
}

}  // namespace ingot
