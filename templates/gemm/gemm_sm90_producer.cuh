// The parameters of gemm_sm90, and how its operands get to shared memory: barriers, the ring of stages, the order of
// tiles, and the thread that keeps the ring filled.
#pragma once

#include "gemm/gemm_epilogue.cuh"
#include "gemm/gemm_sm90_experts.cuh"
#include "gemm/gemm_sm90_split.cuh"
#include "gemm/gemm_sm90_tiling.cuh"
#include "gemm/stage_ring.cuh"
#include "gemm/stream_k.cuh"
#include "memory.cuh"
#include "platform.cuh"
#include "ptx/cluster.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/shared.cuh"
#include "ptx/tma.cuh"

namespace ingot {

// How b's scale_inv are stored. one: one for all of b; rows: one per row; in both cases a has one for all or one per
// row. groups: one per C.scale_b, such as 128 x 128; a then has one per 1 x 128.
struct Sm90GemmParams {
  // 128-byte swizzle; a box has rows of kSm90Depth bytes along K, as many as a block loads of a tile. a, b: for whole
  // tiles; tail_a, tail_b: for a last tile with fewer rows (sm90_tail_box). A map is not read if there is no such tile.
  // An operand across K has a or b alone (gemm_sm90_producer16.cuh).
  TensorMap a, b;
  TensorMap tail_a, tail_b;
  TensorMap out_map;  // if whole_vectors: boxes of sm90_chunk_columns() x 16 rows, swizzled as long as they are
  const float* factor_a;
  const float* factor_b;
  const void* bias;  // read if the kernel has a bias
  void* out;
  i64 out_stride;  // elements
  u32 m, n, k;
  u32 factor_a_stride, factor_b_stride;  // 0: one scale_inv for all; otherwise from one row's (or block's) to the next
  // From one group's scale_inv to the next; of a grouped GEMM along K without groups, from one expert's (first) to the
  // next one's.
  u32 factor_a_group_stride, factor_b_group_stride;
  u32 factor_b_expert_stride;  // of groups of a grouped GEMM: from the first of one expert's b to the next one's
  u32 whole_vectors;           // do all rows of out start at multiples of 16 bytes?
  u32 factors_by_engine;       // may the copy engine load scale_inv of groups? (sm90_by_engine())
  EpilogueParams epilogue;
  StreamKParams cut;
};

#if INGOT_ON_DEVICE
#if !defined(__CUDA_ARCH_FEAT_SM90_ALL)
#error "gemm_sm90.cuh is for sm_90a: other targets have no wgmma"
#endif

// Addresses in shared memory, and this block's rank in its cluster.
template <GemmSm90Config C, Sm90Tiling T = C.tiling>
struct Sm90Block {
  u32 stages, staging, columns, full, empty, factors;
  u32 rank;
  ExpertTable experts{};  // of a grouped GEMM

  INGOT_DEVICE static Sm90Block make() {
    const u32 base = ptx::dynamic_shared();
    const u32 barriers = base + sm90_barriers_offset(C);
    return {.stages = base,
            .staging = base + sm90_staging_offset(T),
            .columns = base + sm90_columns_offset(T),
            .full = barriers,
            .empty = barriers + 8 * T.stages,
            .factors = base + sm90_factors_offset(C),
            .rank = sm90_cluster_size(T) > 1 ? ptx::cluster_rank() : 0};
  }

  // Along K: the first of the barriers that count the bytes of stages with columns of two experts.
  INGOT_DEVICE u32 landed() const { return full + (sm90_landed_offset(C) - sm90_barriers_offset(C)); }

  // Does one thread load scale_inv of groups? Then it arrives once for what the copy engine loads, and once for those
  // of b's blocks.
  INGOT_DEVICE static bool factors_by_engine(const Sm90GemmParams& p) {
    return has_extents(C.scale_b) && p.factors_by_engine != 0;
  }

  INGOT_DEVICE void make_barriers(const Sm90GemmParams& p) const {
    constexpr u32 kWarps = 4 * (T.pingpong ? 1 : sm90_consumers(T)) * sm90_cluster_size(T);
    constexpr u32 kArrivals = sm90_factors_of_rows(C) ? 1 : 2;
    const u32 loaders = 1 + (factors_by_engine(p) ? kArrivals : has_extents(C.scale_b) ? kSm90FactorLoaders : 0);
    INGOT_UNROLL
    for (u32 i = 0; i < T.stages; ++i) {
      ptx::mbarrier_init(full + 8 * i, loaders);
      ptx::mbarrier_init(empty + 8 * i, kWarps * ptx::kArrivalsOfWarp);
      if constexpr (C.along_k) ptx::mbarrier_init(landed() + 8 * i, 1);
    }
    ptx::fence_mbarrier_init();
  }

  INGOT_DEVICE static void sync_all() {
    if constexpr (sm90_cluster_size(T) > 1) {
      ptx::cluster_sync();
    } else {
      __syncthreads();
    }
  }
};

// The tiles of this block, one after the other.
template <Sm90Tiling T>
struct Sm90Walk {
  u32 tiles_m, tiles_n, tiles, index, step;

  INGOT_DEVICE explicit Sm90Walk(const Sm90GemmParams& p)
      : tiles_m(sm90_tiles_m(T, p.m)),
        tiles_n(sm90_tiles_n(T, p.n)),
        tiles(tiles_m * tiles_n),
        index(blockIdx.x / sm90_cluster_size(T)),
        step(gridDim.x / sm90_cluster_size(T)) {}

  INGOT_DEVICE bool more() const { return tiles > index; }
  INGOT_DEVICE void advance() { index += step; }

  // The first row and column of the current tile of the block with that rank.
  INGOT_DEVICE Sm90TileIndex first(u32 rank) const {
    const Sm90TileIndex tile = sm90_tile_index(index, tiles_m, tiles_n);
    return {(tile.m * T.cluster_m + (T.cluster_m > 1 ? rank : 0)) * T.m,
            (tile.n * T.cluster_n + (T.cluster_n > 1 ? rank : 0)) * T.n};
  }
};

// The same for stream-K, where tiles are cut along K.
template <Sm90Tiling T>
struct Sm90CutWalk : StreamKStretch {
  const Sm90GemmParams& p;

  INGOT_DEVICE explicit Sm90CutWalk(const Sm90GemmParams& params)
      : StreamKStretch(params.cut.split, blockIdx.x), p(params) {}

  INGOT_DEVICE Sm90TileIndex first() const {
    const Sm90TileIndex tile = sm90_tile_index(span().tile, sm90_tiles_m(T, p.m), sm90_tiles_n(T, p.n));
    return {tile.m * T.m, tile.n * T.n};
  }
};

// Calls loader.load(first, begin, end) for each tile of this block, or each of its spans if tiles are cut along K: the
// tile's first row and column, and the steps to load. steps: of a whole tile.
template <GemmSm90Config C, class Loader, Sm90Tiling T = C.tiling>
INGOT_DEVICE void sm90_load_tiles(const Sm90GemmParams& p, const Sm90Block<C>& block, u32 steps, Loader& loader) {
  if constexpr (T.stream_k) {
    INGOT_UNROLL_BY(1)
    for (Sm90CutWalk<T> walk(p); walk.more(); walk.advance()) {
      loader.load(walk.first(), walk.span().begin, walk.span().end);
    }
  } else {
    INGOT_UNROLL_BY(1)
    for (Sm90Walk<T> walk(p); walk.more(); walk.advance()) loader.load(walk.first(block.rank), 0, steps);
  }
}

// The part of an operand's rows that one block loads in each step of a tile.
struct Sm90Slice {
  const TensorMap* map;
  i32 row;     // the first of them
  u32 offset;  // where they go in the stage's part of that operand
  u32 bytes;   // of all blocks' slices together
  bool some;   // does this block load any?
};

// A block's slice of Rows rows, from `first` on, that Blocks blocks of a cluster load for each other. Rows outside the
// matrix are not loaded: whatever shared memory holds there affects only outputs that nobody stores, and the copy
// engine would take four times as long to fill rows with zeros as to load them.
template <u32 Rows, u32 Blocks>
INGOT_DEVICE Sm90Slice sm90_slice(const TensorMap& whole, const TensorMap& tail, u32 first, u32 rows, u32 rank) {
  constexpr u32 kBox = Rows / Blocks;
  const u32 of_cluster = Blocks > 1 ? rank : 0;
  if (first + Rows <= rows) {
    return {.map = &whole,
            .row = static_cast<i32>(first + of_cluster * kBox),
            .offset = of_cluster * kBox * kSm90Depth,
            .bytes = Rows * kSm90Depth,
            .some = true};
  }
  const u32 left = rows - min_of(first, rows);
  const u32 box = sm90_tail_box(left, Blocks);
  return {.map = &tail,
          .row = static_cast<i32>(first + of_cluster * box),
          .offset = of_cluster * box * kSm90Depth,
          .bytes = left == 0 ? 0 : ceil_div(left, box) * box * kSm90Depth,
          .some = left > of_cluster * box};
}

// The slices of one tile.
template <Sm90Tiling T>
struct Sm90Slices {
  Sm90Slice a, b;

  INGOT_DEVICE Sm90Slices(const Sm90GemmParams& p, const Sm90TileIndex& first, u32 rank)
      : a(sm90_slice<T.m, T.cluster_n>(p.a, p.tail_a, first.m, p.m, rank)),
        b(sm90_slice<T.n, T.cluster_m>(p.b, p.tail_b, first.n, p.n, rank)) {}
};

// A block that shares no slice has one box at `to`: its offset is not added, which leaves a step one addition less.
template <u32 Blocks>
INGOT_DEVICE void sm90_load_slice(const Sm90Slice& slice, u32 to, u32 full, i32 x) {
  if (!slice.some) return;
  if constexpr (Blocks > 1) {
    constexpr u16 kAll = (1U << Blocks) - 1;
    ptx::tma_load_multicast(to + slice.offset, slice.map, full, x, slice.row, kAll);
  } else {
    ptx::tma_load(to, slice.map, full, x, slice.row);
  }
}

// Loads one step of a tile into the ring's next stage, once that is free.
template <GemmSm90Config C, Sm90Tiling T = C.tiling>
INGOT_DEVICE void sm90_load(const Sm90Block<C>& block, StageRing<T.stages>& ring, const Sm90Slices<T>& slices,
                            u32 step) {
  const u32 full = block.full + 8 * ring.stage;
  const u32 a = block.stages + ring.stage * sm90_stage_bytes(T);
  const i32 x = static_cast<i32>(step * kSm90Depth);
  ptx::mbarrier_wait(block.empty + 8 * ring.stage, ring.phase ^ 1);
  ptx::mbarrier_arrive_expect_tx(full, slices.a.bytes + slices.b.bytes);
  sm90_load_slice<T.cluster_n>(slices.a, a, full, x);
  sm90_load_slice<T.cluster_m>(slices.b, a + T.m * kSm90Depth, full, x);
  ring.advance();
}

// Fills the stages; one thread runs it.
template <GemmSm90Config C, Sm90Tiling T = C.tiling>
INGOT_DEVICE void sm90_produce(const Sm90GemmParams& p, const Sm90Block<C>& block) {
  const u32 steps = sm90_steps(p.k);
  StageRing<T.stages> ring;
  INGOT_UNROLL_BY(1)
  for (Sm90Walk<T> walk(p); walk.more(); walk.advance()) {
    const Sm90Slices<T> slices(p, walk.first(block.rank), block.rank);
    INGOT_UNROLL_BY(1)
    for (u32 step = 0; step < steps; ++step) sm90_load<C>(block, ring, slices, step);
  }
}

// The same for stream-K, where tiles are cut along K.
template <GemmSm90Config C, Sm90Tiling T = C.tiling>
INGOT_DEVICE void sm90_produce_cut(const Sm90GemmParams& p, const Sm90Block<C>& block) {
  StageRing<T.stages> ring;
  INGOT_UNROLL_BY(1)
  for (Sm90CutWalk<T> walk(p); walk.more(); walk.advance()) {
    const Sm90Slices<T> slices(p, walk.first(), 0);
    INGOT_UNROLL_BY(1)
    for (u32 step = walk.span().begin; step < walk.span().end; ++step) sm90_load<C>(block, ring, slices, step);
  }
}
#endif

}  // namespace ingot
