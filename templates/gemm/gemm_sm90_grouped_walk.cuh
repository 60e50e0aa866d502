// The parts of gemm_sm90 that a grouped GEMM has of its own: its parameters, the order of its tiles, and the thread
// that loads their operands. (gemm_sm90_experts.cuh has the arithmetic.)
//
// A tile has rows of one expert only. If that expert's rows do not fill it, the rows of A are loaded in boxes of a
// quarter of a tile, as many as hold rows of the expert: they may reach into the rows of the next one, whose products
// nobody stores. B's rows are those of all experts, one expert after the other; a last tile with fewer columns has the
// same columns in every expert, and its own map.
#pragma once

#include "gemm/gemm_sm90_along_k.cuh"
#include "gemm/gemm_sm90_experts.cuh"
#include "gemm/gemm_sm90_producer.cuh"
#include "gemm/gemm_sm90_tiling.cuh"
#include "gemm/stage_ring.cuh"
#include "platform.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/shared.cuh"

namespace ingot {

// Along K, gemm.m and gemm.n are the rows and columns of one expert's output, and maps and scale_inv are gemm_sm90's
// (each expert has its own scale_inv, or all have one; those of groups are those of all slots). Otherwise:
//
// gemm.m: the rows of A. gemm.n: the columns of one expert. b, tail_b: maps of all experts' rows. tail_a: boxes of
// sm90_expert_box() rows. factor_a without groups: factor_a_group_stride leads from one expert's to the next one's, or
// is 0. factor_b: one scale_inv for each expert; one for each row of b; or those of groups, in the order of b's rows,
// where each expert begins with a block of its own, factor_b_expert_stride from the one before.
struct Sm90GroupedParams {
  Sm90GemmParams gemm;
  const i32* ends;  // [experts]: the row (column) of A at which each expert ends; with a capacity, how many rows it has
  u32 experts;      // 1 to kSm90MostExperts
  u32 capacity;     // 0, or the rows that each expert has room for: experts * capacity = gemm.m
};

#if INGOT_ON_DEVICE
// The parameters of a kernel.
template <GemmSm90Config C>
using Sm90ParamsOf = typename Select<C.experts, Sm90GroupedParams, Sm90GemmParams>::Type;
INGOT_DEVICE const Sm90GemmParams& sm90_gemm_params(const Sm90GemmParams& p) { return p; }
INGOT_DEVICE const Sm90GemmParams& sm90_gemm_params(const Sm90GroupedParams& p) { return p.gemm; }

// All threads of the block call it, after start_in_turn().
template <GemmSm90Config C>
INGOT_DEVICE ExpertTable sm90_make_expert_table(const Sm90GroupedParams& p) {
  auto* const memory = reinterpret_cast<u32*>(ptx::dynamic_shared_pointer() + sm90_experts_offset(C));
  const ExpertTable table{
      .row_ends = memory, .tile_ends = memory + kSm90MostExperts, .experts = p.experts, .capacity = p.capacity};
  if constexpr (C.along_k) {
    INGOT_UNROLL_BY(1)
    for (u32 i = threadIdx.x; i < p.experts; i += sm90_threads(C.tiling)) {
      if constexpr (has_extents(C.scale_b)) {
        table.row_ends[i] = sm90_slots_end(p.ends[i], p.gemm.k, p.experts);
      } else {
        table.row_ends[i] = sm90_column_end(p.ends[i], p.gemm.k);
      }
    }
    __syncthreads();
  } else {
    fill_expert_table(table, p.ends, p.gemm.m, sm90_threads(C.tiling), Sm90ExpertTiles<C.tiling>{p.gemm.n});
  }
  return table;
}

// The expert whose rows a tile has, and where they end; along K, the index alone.
struct Sm90Expert {
  u32 index, row_end;
};

// Rows from here on are not the tile's: they are outside the output, or another expert's.
template <GemmSm90Config C>
INGOT_DEVICE u32 sm90_end_m(const Sm90GemmParams& p, const Sm90Expert& expert) {
  if constexpr (C.along_k) {
    return (expert.index + 1) * p.m;
  } else if constexpr (C.experts) {
    return expert.row_end;
  } else {
    return p.m;
  }
}

// The tiles of this block, one after the other, as Sm90Walk has them. What the table holds is read again for each tile:
// a thread that multiplies has no registers to keep it in.
template <GemmSm90Config C, Sm90Tiling T = C.tiling>
struct Sm90GroupedWalk {
  const Sm90GemmParams& p;
  const ExpertTable& table;
  u32 index, step;
  u32 expert = 0;

  INGOT_DEVICE Sm90GroupedWalk(const Sm90GemmParams& params, const Sm90Block<C>& block)
      : p(params),
        table(block.experts),
        index(blockIdx.x / sm90_cluster_size(T)),
        step(gridDim.x / sm90_cluster_size(T)) {}

  INGOT_DEVICE bool more() const { return table.tiles() > index; }
  INGOT_DEVICE void advance() { index += step; }

  // The current tile's. Call it before first().
  INGOT_DEVICE Sm90Expert find() {
    expert = table.expert_of(index, expert);
    return {expert, table.row_ends[expert]};
  }
  INGOT_DEVICE Sm90TileIndex first(u32 rank) const { return sm90_first_of_tile<T>(table, index, expert, p.n, rank); }
};

template <GemmSm90Config C>
INGOT_DEVICE auto sm90_walk(const Sm90GemmParams& p, [[maybe_unused]] const Sm90Block<C>& block) {
  if constexpr (C.experts) {
    return Sm90GroupedWalk<C>(p, block);
  } else {
    return Sm90Walk<C.tiling>(p);
  }
}

// The rows of A that one block loads in each step of a tile.
template <GemmSm90Config C, Sm90Tiling T = C.tiling>
struct Sm90ExpertRows {
  static constexpr u32 kBlocks = T.cluster_n;  // that load them for each other
  static constexpr u32 kBox = sm90_expert_box(T);
  static_assert(kBox % 8 == 0, "a box begins where the swizzle repeats");

  Sm90Slice slice;  // whole tiles: all of it; otherwise the first box
  u32 boxes;        // of all blocks; 1 for a whole tile

  INGOT_DEVICE Sm90ExpertRows(const Sm90GemmParams& p, u32 first, u32 row_end, u32 rank) {
    const u32 rows = row_end - min_of(first, row_end);
    const u32 of_cluster = kBlocks > 1 ? rank : 0;
    const bool whole = rows >= T.m;
    const u32 box = whole ? T.m / kBlocks : kBox;
    boxes = whole ? kBlocks : ceil_div(rows, kBox);
    slice = {.map = whole ? &p.a : &p.tail_a,
             .row = static_cast<i32>(first + of_cluster * box),
             .offset = of_cluster * box * kSm90Depth,
             .bytes = boxes * box * kSm90Depth,
             .some = boxes > of_cluster};
  }

  // Loads them to `to`, from element x along K on.
  INGOT_DEVICE void load(u32 to, u32 full, i32 x, u32 rank) const {
    sm90_load_slice<kBlocks>(slice, to, full, x);
    Sm90Slice box = slice;
    INGOT_UNROLL_BY(1)
    for (u32 i = (kBlocks > 1 ? rank : 0) + kBlocks; i < boxes; i += kBlocks) {
      box.row += static_cast<i32>(kBlocks * kBox);
      box.offset += kBlocks * kBox * kSm90Depth;
      sm90_load_slice<kBlocks>(box, kBlocks > 1 ? to : to + box.offset, full, x);
    }
  }
};

// Fills the stages; one thread runs it. Step: elements along K of a stage.
template <GemmSm90Config C, u32 Step, Sm90Tiling T = C.tiling>
INGOT_DEVICE void sm90_produce_grouped(const Sm90GemmParams& p, const Sm90Block<C>& block) {
  const u32 steps = sm90_steps(p.k, Step);
  StageRing<T.stages> ring;
  INGOT_UNROLL_BY(1)
  for (Sm90GroupedWalk<C> walk(p, block); walk.more(); walk.advance()) {
    const Sm90Expert expert = walk.find();
    const Sm90TileIndex first = walk.first(block.rank);
    const Sm90ExpertRows<C> a(p, first.m, expert.row_end, block.rank);
    Sm90Slice b = sm90_slice<T.n, T.cluster_m>(p.b, p.tail_b, first.n, p.n, block.rank);
    b.row += static_cast<i32>(expert.index * p.n);
    INGOT_UNROLL_BY(1)
    for (u32 step = 0; step < steps; ++step) {
      const u32 full = block.full + 8 * ring.stage;
      const u32 stage = block.stages + ring.stage * sm90_stage_bytes(T);
      const i32 x = static_cast<i32>(step * Step);
      ptx::mbarrier_wait(block.empty + 8 * ring.stage, ring.phase ^ 1);
      ptx::mbarrier_arrive_expect_tx(full, a.slice.bytes + b.bytes);
      a.load(stage, full, x, block.rank);
      sm90_load_slice<T.cluster_m>(b, stage + T.m * kSm90Depth, full, x);
      ring.advance();
    }
  }
}
#endif

}  // namespace ingot
