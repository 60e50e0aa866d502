// Grouped GEMMs: the rows of A are those of experts, one expert after the other, and each expert has its own B. (An
// expert, because a group is what shares a scale_inv.) Device memory says where an expert's rows end; a block finds its
// tiles from it by a table (expert_table.cuh). This is how tiles are counted and where they begin: constant arithmetic
// shared by the kernel, its launch and its tests.
#pragma once

#include "gemm/expert_table.cuh"
#include "gemm/gemm_sm90_tiling.cuh"
#include "platform.cuh"

namespace ingot {

static_assert(kSm90MostExperts == kExpertTableMost);

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

// Counts an expert's tiles, for its table.
template <Sm90Tiling T>
struct Sm90ExpertTiles {
  u32 n;
  INGOT_HOST_DEVICE u32 operator()(u32 rows) const { return sm90_expert_tiles(T, rows, n); }
};

// The first row and column of a tile of an expert, for the block with that rank in its cluster.
template <Sm90Tiling T>
INGOT_HOST_DEVICE Sm90TileIndex sm90_first_of_tile(const ExpertTable& table, u32 tile, u32 expert, u32 n, u32 rank) {
  const u32 row = table.first_row(expert);
  const Sm90TileIndex at = sm90_tile_index(tile - table.first_tile(expert),
                                           sm90_tiles_m(T, table.row_ends[expert] - row), sm90_tiles_n(T, n));
  return {row + (at.m * T.cluster_m + (T.cluster_m > 1 ? rank : 0)) * T.m,
          (at.n * T.cluster_n + (T.cluster_n > 1 ? rank : 0)) * T.n};
}

}  // namespace ingot
