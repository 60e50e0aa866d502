// What gemm_sm90 is given, and how its tiles come to shared memory: barriers, the ring of stages, the order of tiles,
// and the thread that keeps the ring filled.
#pragma once

#include "gemm_epilogue.cuh"
#include "gemm_sm90_split.cuh"
#include "gemm_sm90_tiling.cuh"
#include "memory.cuh"
#include "platform.cuh"
#include "ptx/cluster.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/shared.cuh"
#include "ptx/tma.cuh"

namespace ingot {

// How b's factors lie. one: one for all of b; rows: one for each row; in both, a has one for all or one for each row.
// blocks, groups: one for each 128 x 128 or each 1 x 128; a then has one for each 1 x 128.
enum class Sm90Factors : u32 { one, rows, blocks, groups };

// Of stream-K.
struct Sm90CutParams {
  Sm90Split split;
  float* parts;  // sm90_part_bytes() of each block
  u32* flags;    // kSm90FlagsOfBlock of each block: zeros, before the kernel and after it
};

struct Sm90GemmParams {
  TensorMap a, b;     // codes as bytes; boxes of kSm90Depth x sm90_box_a / sm90_box_b, 128-byte swizzle
  TensorMap out_map;  // where whole_vectors: boxes of 128 bytes x 16 rows, 128-byte swizzle
  const float* factor_a;
  const float* factor_b;
  const void* bias;  // read where the kernel has one
  void* out;
  i64 out_stride;  // elements
  u32 m, n, k;
  u32 factor_a_stride;  // 0: one for all; 1: one per row
  u32 whole_vectors;    // do all rows of out start at multiples of 16 bytes?
  EpilogueParams epilogue;
  Sm90CutParams cut;
};

#if INGOT_ON_DEVICE
#if !defined(__CUDA_ARCH_FEAT_SM90_ALL)
#error "gemm_sm90.cuh is for sm_90a: other targets have no wgmma"
#endif

// A place in the ring of stages, and how often, modulo 2, the ring was gone round.
template <u32 Stages>
struct Sm90Ring {
  u32 stage = 0;
  u32 phase = 0;

  INGOT_DEVICE void advance() {
    if (++stage == Stages) {
      stage = 0;
      phase ^= 1;
    }
  }
  INGOT_DEVICE void advance(u32 steps) {
    const u32 to = stage + steps;
    stage = to % Stages;
    phase ^= (to / Stages) & 1;
  }
};

// Addresses in shared memory, and this block's place in its cluster.
template <Sm90Tiling T>
struct Sm90Block {
  u32 stages, staging, columns, full, empty;
  u32 rank;

  INGOT_DEVICE static Sm90Block make() {
    const u32 base = ptx::dynamic_shared();
    const u32 barriers = base + sm90_barriers_offset(T);
    return {.stages = base,
            .staging = base + sm90_staging_offset(T),
            .columns = base + sm90_columns_offset(T),
            .full = barriers,
            .empty = barriers + 8 * T.stages,
            .rank = sm90_cluster_size(T) > 1 ? ptx::cluster_rank() : 0};
  }

  INGOT_DEVICE void make_barriers() const {
    constexpr u32 kWarps = 4 * (T.pingpong ? 1 : kSm90Consumers) * sm90_cluster_size(T);
    INGOT_UNROLL
    for (u32 i = 0; i < T.stages; ++i) {
      ptx::mbarrier_init(full + 8 * i, 1);
      ptx::mbarrier_init(empty + 8 * i, kWarps);
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

  // The first row and column of the current tile of the block of that rank.
  INGOT_DEVICE Sm90Place first(u32 rank) const {
    const Sm90Place place = sm90_place(index, tiles_m, tiles_n);
    return {(place.m * T.cluster_m + (T.cluster_m > 1 ? rank : 0)) * T.m,
            (place.n * T.cluster_n + (T.cluster_n > 1 ? rank : 0)) * T.n};
  }
};

// The same where tiles are cut along K.
template <Sm90Tiling T>
struct Sm90CutWalk : Sm90Stretch {
  const Sm90GemmParams& p;

  INGOT_DEVICE explicit Sm90CutWalk(const Sm90GemmParams& params)
      : Sm90Stretch(params.cut.split, blockIdx.x), p(params) {}

  INGOT_DEVICE Sm90Place first() const {
    const Sm90Place place = sm90_place(span().tile, sm90_tiles_m(T, p.m), sm90_tiles_n(T, p.n));
    return {place.m * T.m, place.n * T.n};
  }
};

// One step of a tile into the ring's next stage, once that is free.
template <Sm90Tiling T>
INGOT_DEVICE void sm90_load(const Sm90GemmParams& p, const Sm90Block<T>& block, Sm90Ring<T.stages>& ring,
                            const Sm90Place& first, u32 step) {
  constexpr u32 kBoxA = sm90_box_a(T);
  constexpr u32 kBoxB = sm90_box_b(T);
  constexpr u16 kBoth = 3;
  const u32 full = block.full + 8 * ring.stage;
  const u32 a = block.stages + ring.stage * sm90_stage_bytes(T);
  const u32 b = a + T.m * kSm90Depth;
  const i32 x = static_cast<i32>(step * kSm90Depth);
  const i32 row_a = static_cast<i32>(first.m);
  const i32 row_b = static_cast<i32>(first.n);
  ptx::mbarrier_wait(block.empty + 8 * ring.stage, ring.phase ^ 1);
  ptx::mbarrier_arrive_expect_tx(full, sm90_stage_bytes(T));
  if constexpr (T.cluster_n > 1) {
    ptx::tma_load_multicast(a + block.rank * kBoxA * kSm90Depth, &p.a, full, x,
                            row_a + static_cast<i32>(block.rank * kBoxA), kBoth);
  } else {
    ptx::tma_load(a, &p.a, full, x, row_a);
  }
  if constexpr (T.cluster_m > 1) {
    ptx::tma_load_multicast(b + block.rank * kBoxB * kSm90Depth, &p.b, full, x,
                            row_b + static_cast<i32>(block.rank * kBoxB), kBoth);
  } else {
    ptx::tma_load(b, &p.b, full, x, row_b);
  }
  ring.advance();
}

// One thread fills the stages.
template <Sm90Tiling T>
INGOT_DEVICE void sm90_produce(const Sm90GemmParams& p, const Sm90Block<T>& block) {
  const u32 steps = sm90_steps(p.k);
  Sm90Ring<T.stages> ring;
  INGOT_UNROLL_BY(1)
  for (Sm90Walk<T> walk(p); walk.more(); walk.advance()) {
    const Sm90Place first = walk.first(block.rank);
    INGOT_UNROLL_BY(1)
    for (u32 step = 0; step < steps; ++step) sm90_load<T>(p, block, ring, first, step);
  }
}

// The same where tiles are cut along K.
template <Sm90Tiling T>
INGOT_DEVICE void sm90_produce_cut(const Sm90GemmParams& p, const Sm90Block<T>& block) {
  Sm90Ring<T.stages> ring;
  INGOT_UNROLL_BY(1)
  for (Sm90CutWalk<T> walk(p); walk.more(); walk.advance()) {
    const Sm90Place first = walk.first();
    INGOT_UNROLL_BY(1)
    for (u32 step = walk.span().begin; step < walk.span().end; ++step) sm90_load<T>(p, block, ring, first, step);
  }
}
#endif

}  // namespace ingot
