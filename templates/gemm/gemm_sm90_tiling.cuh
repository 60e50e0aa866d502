// How gemm_sm90 divides a GEMM into tiles, stages of shared memory and clusters of blocks, and the order of the
// tiles: constant arithmetic shared by the kernel, its launch and the cost model. (gemm_sm90_split.cuh divides along K,
// too.)
#pragma once

#include "granularity.cuh"
#include "platform.cuh"

namespace ingot {

// A template argument: all of it is known when the kernel is compiled.
struct Sm90Tiling {
  u32 m = 128, n = 256;              // outputs of a tile
  u32 cluster_m = 1, cluster_n = 1;  // blocks of a cluster: one, or two that share an operand's tile
  u32 stages = 4;                    // tiles of A and of B in flight or in use
  bool pingpong = false;             // each warpgroup has its own tiles; otherwise they share each tile
  bool stream_k = false;             // tiles are cut along K, so that all blocks have equal work
  bool operator==(const Sm90Tiling&) const = default;
};

// The kernel's template arguments that are not types.
struct GemmSm90Config {
  Sm90Tiling tiling{};
  bool fast_accumulation = false;
  Granularity scale_b{};  // what shares a scale_inv of b; bf16 and f16 operands have none
  bool bias = false;
  // bf16 and f16 only: is the operand stored across k, as [K, M] or [K, N]?
  bool across_a = false;
  bool across_b = false;
  bool experts = false;  // rows of a are those of experts, each with its own b (gemm_sm90_experts.cuh)
  bool along_k = false;  // with experts: columns of a and b are theirs, each with its own out (gemm_sm90_along_k.cuh)
};

// scale_inv of b. {0, 0}: one for all of b; {1, 0}: one for each row; in both, a has one for all or one for each row.
// {128, 128}, {1, 128}: one for each block or group along K; a then has one for each 1 x 128.
INGOT_HOST_DEVICE constexpr bool sm90_has_factors(Granularity scale_b) {
  return is_tensorwise(scale_b) || is_rowwise(scale_b) || scale_b == Granularity{128, 128} ||
         scale_b == Granularity{1, 128};
}

inline constexpr u32 kSm90Depth = 128;           // bytes along K in a stage: one row of the 128-byte swizzle
inline constexpr u32 kSm90Step16 = 64;           // elements of bf16 or f16 in a row of 128 bytes
inline constexpr u32 kSm90FactorLoaders = 32;    // threads of the producer's warpgroup that load scale_inv of groups
inline constexpr u32 kSm90SharedLimit = 232448;  // bytes that a block of sm_90 may have
inline constexpr u32 kSm90Group = 8;             // rows of cluster tiles that are walked through together
inline constexpr u32 kSm90MostExperts = 512;     // of a grouped GEMM; each takes 8 bytes of shared memory
inline constexpr u32 kSm90EdgeThreads = 64;      // along K: of the producer's warpgroup, for stages of two experts
inline constexpr u32 kSm90EdgeBarrier = 5;       // theirs; two warpgroups that multiply have 1 to 4

INGOT_HOST_DEVICE constexpr u32 sm90_cluster_size(const Sm90Tiling& t) { return t.cluster_m * t.cluster_n; }

// Warpgroups that multiply: two, or three that share a tile of 192 rows. The threads of a block: theirs, and those of
// the producer's warpgroup.
INGOT_HOST_DEVICE constexpr u32 sm90_consumers(const Sm90Tiling& t) { return !t.pingpong && t.m == 192 ? 3 : 2; }
INGOT_HOST_DEVICE constexpr u32 sm90_threads(const Sm90Tiling& t) { return 128 * (sm90_consumers(t) + 1); }
// For __launch_bounds__, which takes no call of a function.
template <GemmSm90Config C>
inline constexpr int kSm90ThreadsOf = sm90_threads(C.tiling);

// Warpgroups share a tile's rows, as many each. In a tile of 64 rows, which one instruction takes whole, they share its
// columns.
INGOT_HOST_DEVICE constexpr bool sm90_shares_columns(const Sm90Tiling& t) { return !t.pingpong && t.m == 64; }

// Columns of a warpgroup.
INGOT_HOST_DEVICE constexpr u32 sm90_columns(const Sm90Tiling& t) { return sm90_shares_columns(t) ? t.n / 2 : t.n; }

// A warp stages 16 rows of the output at a time, of 128 bytes each. Rows of FP8 have 64 bytes, and so have those of 16
// bits where a tile's columns are no multiple of 64. The columns of a staged row, and the bytes that a warp needs:
INGOT_HOST_DEVICE constexpr bool sm90_has_half_chunks(const Sm90Tiling& t) { return sm90_columns(t) % 64 != 0; }
INGOT_HOST_DEVICE constexpr u32 sm90_chunk_columns(const Sm90Tiling& t, u32 bytes_of_output) {
  return bytes_of_output == 1 ? 64 : (sm90_has_half_chunks(t) ? 64 : 128) / bytes_of_output;
}
INGOT_HOST_DEVICE constexpr u32 sm90_staging_bytes(const Sm90Tiling& t) {
  return sm90_has_half_chunks(t) ? 1024 : 2048;
}

// Columns of a warpgroup that have a scale_inv of b's blocks in common.
INGOT_HOST_DEVICE constexpr u32 sm90_share_columns(const Sm90Tiling& t) { return min_of(sm90_columns(t), 128U); }

// Columns that a warpgroup multiplies at once if it adds up the tensor cores' parts. With scale_inv of groups it may
// have 256, one half after the other.
INGOT_HOST_DEVICE constexpr bool sm90_has_halves(const Sm90Tiling& t) {
  return !t.pingpong && !t.stream_k && t.m == 128 && t.n == 256;
}
INGOT_HOST_DEVICE constexpr u32 sm90_part_columns(const Sm90Tiling& t, bool groups) {
  return groups && sm90_has_halves(t) ? 128 : sm90_columns(t);
}

// Do rows of b within one share of columns have scale_inv of groups that differ?
INGOT_HOST_DEVICE constexpr bool sm90_factors_of_rows(const GemmSm90Config& config) {
  return has_extents(config.scale_b) && config.scale_b.rows % sm90_share_columns(config.tiling) != 0;
}

// Tiles of 64 rows that a warpgroup multiplies by the same tile of B.
INGOT_HOST_DEVICE constexpr u32 sm90_waves(const Sm90Tiling& t) {
  return t.pingpong || sm90_shares_columns(t) ? t.m / 64 : t.m / (64 * sm90_consumers(t));
}

// Sums in a thread: those of a tile, and those of a part of so many columns that will be added to them.
INGOT_HOST_DEVICE constexpr u32 sm90_sums(const Sm90Tiling& t, u32 part_columns) {
  return (sm90_waves(t) * sm90_columns(t) + part_columns) / 2;
}

INGOT_HOST_DEVICE constexpr u32 sm90_stage_bytes(const Sm90Tiling& t) { return (t.m + t.n) * kSm90Depth; }

// scale_inv of groups in shared memory: for each stage one of each row of A, then one of each row of B; or, where a
// block of b has one scale_inv, one for each share of the tile's columns.
INGOT_HOST_DEVICE constexpr u32 sm90_factor_shares(const Sm90Tiling& t) { return t.n / sm90_share_columns(t); }
// Rows of experts begin anywhere, but the copy engine at multiples of four scale_inv: it loads from there on, and a
// tile's are up to three further in shared memory.
INGOT_HOST_DEVICE constexpr bool sm90_shifts_factors(const GemmSm90Config& config) {
  return has_extents(config.scale_b) && config.experts && !config.along_k;
}
// Places for scale_inv of A in a stage.
INGOT_HOST_DEVICE constexpr u32 sm90_factors_a(const GemmSm90Config& config) {
  return config.tiling.m + (sm90_shifts_factors(config) ? 4 : 0);
}
INGOT_HOST_DEVICE constexpr u32 sm90_factor_bytes(const GemmSm90Config& config) {
  if (!has_extents(config.scale_b)) return 0;
  return 4 * (sm90_factors_a(config) + (sm90_factors_of_rows(config) ? config.tiling.n : 4));
}
// May three warpgroups multiply? They have 160 registers a thread, which is enough for sums and parts of 64 x 128.
INGOT_HOST_DEVICE constexpr bool sm90_has_three(const GemmSm90Config& config) {
  const Sm90Tiling& t = config.tiling;
  return has_extents(config.scale_b) && t.n <= 128 && !t.stream_k && sm90_cluster_size(t) == 1;
}

// Shared memory: the stages; a staging area for each multiplying warp; twice for each warpgroup a tile's column
// scale_inv (of whole rows) and bias; two barriers per stage; scale_inv of groups; where experts end, in two tables, of
// which a GEMM along K needs one: there it has a third barrier per stage instead of the other.
INGOT_HOST_DEVICE constexpr u32 sm90_staging_offset(const Sm90Tiling& t) { return t.stages * sm90_stage_bytes(t); }
INGOT_HOST_DEVICE constexpr u32 sm90_columns_offset(const Sm90Tiling& t) {
  return sm90_staging_offset(t) + 4 * sm90_consumers(t) * sm90_staging_bytes(t);
}
INGOT_HOST_DEVICE constexpr u32 sm90_column_bytes(const GemmSm90Config& config) {
  return (has_extents(config.scale_b) ? 1 : 2) * config.tiling.n * 4;
}
INGOT_HOST_DEVICE constexpr u32 sm90_barriers_offset(const GemmSm90Config& config) {
  return sm90_columns_offset(config.tiling) + 2 * sm90_consumers(config.tiling) * sm90_column_bytes(config);
}
INGOT_HOST_DEVICE constexpr u32 sm90_factors_offset(const GemmSm90Config& config) {
  return sm90_barriers_offset(config) + 16 * config.tiling.stages;
}
INGOT_HOST_DEVICE constexpr u32 sm90_experts_offset(const GemmSm90Config& config) {
  return sm90_factors_offset(config) + config.tiling.stages * sm90_factor_bytes(config);
}
INGOT_HOST_DEVICE constexpr u32 sm90_landed_offset(const GemmSm90Config& config) {
  return sm90_experts_offset(config) + 4 * kSm90MostExperts;
}
INGOT_HOST_DEVICE constexpr u32 sm90_shared_bytes(const GemmSm90Config& config) {
  return sm90_experts_offset(config) + (config.experts ? 8 * kSm90MostExperts : 0);
}

// The rows that one block loads of a last tile with only `rows` rows, if `blocks` blocks load it for each other: all of
// them, or slices that begin where the swizzle repeats.
INGOT_HOST_DEVICE constexpr u32 sm90_tail_box(u32 rows, u32 blocks) {
  return blocks == 1 ? rows : ceil_div(rows, 8 * blocks) * 8;
}

// The number of tiles of a whole cluster, along M and N.
INGOT_HOST_DEVICE constexpr u32 sm90_tiles_m(const Sm90Tiling& t, u32 m) { return ceil_div(m, t.m * t.cluster_m); }
INGOT_HOST_DEVICE constexpr u32 sm90_tiles_n(const Sm90Tiling& t, u32 n) { return ceil_div(n, t.n * t.cluster_n); }

// Blocks to launch: as many clusters as there is work for, and room.
INGOT_HOST_DEVICE constexpr u32 sm90_blocks(const Sm90Tiling& t, u32 m, u32 n, u32 multiprocessors) {
  const u32 size = sm90_cluster_size(t);
  const u64 tiles = u64{sm90_tiles_m(t, m)} * sm90_tiles_n(t, n);
  return static_cast<u32>(min_of(tiles, u64{max_of(multiprocessors / size, 1U)})) * size;
}

struct Sm90TileIndex {
  u32 m, n;  // in cluster tiles
};

// The tile coordinates of the i-th cluster tile: kSm90Group rows of tiles at a time, column by column, so that the
// tiles that run together form nearly a square and share their operands in the L2.
INGOT_HOST_DEVICE constexpr Sm90TileIndex sm90_tile_index(u32 i, u32 tiles_m, u32 tiles_n) {
  const u32 group = i / (kSm90Group * tiles_n);
  const u32 first = group * kSm90Group;
  const u32 height = min_of(kSm90Group, tiles_m - first);
  const u32 within = i - group * kSm90Group * tiles_n;
  return {first + within % height, within / height};
}

}  // namespace ingot
