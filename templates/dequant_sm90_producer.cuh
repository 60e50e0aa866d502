// What dequant_sm90 is given, and how its tiles come to shared memory: barriers, the order of tiles, and the thread
// that keeps the ring of stages filled.
#pragma once

#include "dequant_factors.cuh"
#include "dequant_fragment.cuh"
#include "dequant_sm90_tiling.cuh"
#include "gemm_epilogue.cuh"
#include "memory.cuh"
#include "platform.cuh"
#include "ptx/bulk.cuh"
#include "ptx/cluster.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/memory.cuh"
#include "ptx/shared.cuh"
#include "ptx/tma.cuh"

namespace ingot {

struct DequantSm90Params {
  TensorMap x;        // [m, k], 128-byte swizzle; boxes of 64 k x dequant_x_box() tokens
  const u8* weights;  // packed (dequant_fragment.cuh), from a multiple of 16 bytes
  const void* factors;
  const void* bias;  // of x's type, or null: none
  void* out;
  i64 out_stride;  // elements
  u32 m, n, k;
  u32 factor_stride;  // of groups and blocks: from one row of factors to the next
  EpilogueParams epilogue;
};

#if INGOT_ON_DEVICE
#if !defined(__CUDA_ARCH_FEAT_SM90_ALL)
#error "dequant_sm90.cuh is for sm_90a: other targets have no wgmma"
#endif

// A place in the ring of stages, and how often, modulo 2, the ring was gone round.
template <u32 Stages>
struct DequantRing {
  u32 stage = 0;
  u32 phase = 0;

  INGOT_DEVICE void advance() {
    if (++stage == Stages) {
      stage = 0;
      phase ^= 1;
    }
  }
};

// Addresses in shared memory, and this block's place in its cluster.
template <DequantFormat W, DequantSm90Tiling T>
struct DequantBlock {
  static constexpr u32 kWarps = 4 * T.groups;  // that multiply
  u32 stages, inbox, full, empty, arrived, drained;
  u32 rank;  // among the blocks that split a tile's k
  u32 side;  // among those that share x

  INGOT_DEVICE static DequantBlock make() {
    const u32 base = ptx::dynamic_shared();
    const u32 barriers = base + dequant_barriers_offset<W>(T);
    const u32 in_cluster = dequant_cluster(T) > 1 ? ptx::cluster_rank() : 0;
    return {.stages = base,
            .inbox = base + dequant_inbox_offset<W>(T),
            .full = barriers,
            .empty = barriers + 8 * T.stages,
            .arrived = barriers + 16 * T.stages,
            .drained = barriers + 16 * T.stages + 8,
            .rank = in_cluster % T.split,
            .side = in_cluster / T.split};
  }

  INGOT_DEVICE void make_barriers() const {
    INGOT_UNROLL_BY(1)
    for (u32 i = 0; i < T.stages; ++i) {
      ptx::mbarrier_init(full + 8 * i, 1);
      ptx::mbarrier_init(empty + 8 * i, kWarps * T.multicast);
    }
    ptx::mbarrier_init(arrived, 1);
    ptx::mbarrier_init(drained, kWarps * T.split);
    ptx::fence_mbarrier_init();
  }

  INGOT_DEVICE static void sync_all() {
    if constexpr (dequant_cluster(T) > 1) {
      ptx::cluster_sync();
    } else {
      __syncthreads();
    }
  }
};

// The tiles of this block, one after the other: all tokens of the same rows come together, so that their codes are in
// the L2 from the second time on.
template <DequantSm90Tiling T>
struct DequantWalk {
  u32 tiles_m, tiles, index, step, side;

  INGOT_DEVICE DequantWalk(const DequantSm90Params& p, u32 own_side)
      : tiles_m(dequant_tiles_m(T, p.m)),
        tiles(tiles_m * dequant_tiles_n(T, p.n)),
        index(blockIdx.x / dequant_cluster(T)),
        step(gridDim.x / dequant_cluster(T)),
        side(own_side) {}

  INGOT_DEVICE bool more() const { return tiles > index; }
  INGOT_DEVICE void advance() { index += step; }
  INGOT_DEVICE u32 token() const { return index % tiles_m * T.tokens; }
  INGOT_DEVICE u32 row() const { return (index / tiles_m * T.multicast + side) * dequant_rows(T); }
};

template <DequantFormat W, DequantSm90Tiling T>
struct DequantProducer {
  static constexpr u32 kBlocks = dequant_rows(T) / kDequantRows;  // of 64 rows
  static constexpr u32 kTileBytes = kDequantTileBytes<W>;
  static constexpr u32 kBlockBytes = T.depth / kDequantDepth * kTileBytes;

  const DequantSm90Params& p;
  const DequantBlock<W, T>& block;
  u32 parts;   // of 64 k, of all k
  u32 blocks;  // of 64 rows, of all rows
  DequantSpan span;
  DequantRing<T.stages> ring{};

  INGOT_DEVICE DequantProducer(const DequantSm90Params& params, const DequantBlock<W, T>& b)
      : p(params),
        block(b),
        parts(ceil_div(params.k, kDequantPart)),
        blocks(ceil_div(params.n, kDequantRows)),
        span(dequant_span(T, params.k, b.rank)) {}

  // Parts of a stage.
  INGOT_DEVICE u32 parts_of(u32 stage) const { return min_of(dequant_parts(T), parts - stage * dequant_parts(T)); }

  INGOT_DEVICE const u8* codes(u32 row_block, u32 stage) const {
    return p.weights + (u64{row_block} * parts * 2 + stage * (T.depth / kDequantDepth)) * kTileBytes;
  }

  // Before the kernel ahead has ended: codes into the L2, as many as the ring will take at once.
  INGOT_DEVICE void prefetch() const {
    const DequantWalk<T> walk(p, block.side);
    if (!walk.more()) return;
    const u32 end = min_of(span.end, span.begin + T.stages);
    const u32 first = walk.row() / kDequantRows;
    const u32 count = min_of(kBlocks, blocks - min_of(first, blocks));
    INGOT_UNROLL_BY(1)
    for (u32 stage = span.begin; stage < end; ++stage) {
      INGOT_UNROLL_BY(1)
      for (u32 i = 0; i < count; ++i) ptx::bulk_prefetch(codes(first + i, stage), parts_of(stage) * 2 * kTileBytes);
    }
  }

  INGOT_DEVICE void load(u32 first, u32 count, u32 token, u32 stage, u64 policy) {
    const u32 full = block.full + 8 * ring.stage;
    const u32 to = block.stages + ring.stage * dequant_stage_bytes<W>(T);
    const u32 to_x = to + dequant_code_bytes<W>(T);
    const u32 now = parts_of(stage);
    const u32 box = dequant_x_box(T, p.m);
    ptx::mbarrier_wait(block.empty + 8 * ring.stage, ring.phase ^ 1);
    ptx::mbarrier_arrive_expect_tx(full, now * (count * 2 * kTileBytes + box * T.multicast * kDequantPart * 2));
    INGOT_UNROLL_BY(1)
    for (u32 i = 0; i < count; ++i) {
      ptx::bulk_load(to + i * kBlockBytes, codes(first + i, stage), now * 2 * kTileBytes, full, policy);
    }
    INGOT_UNROLL_BY(1)
    for (u32 part = 0; part < now; ++part) {
      const u32 target = to_x + part * (T.tokens * kDequantPart * 2);
      const i32 x = static_cast<i32>((stage * dequant_parts(T) + part) * kDequantPart);
      if constexpr (T.multicast > 1) {
        // To all blocks of this rank.
        constexpr u32 kSides =
            T.multicast == 2 ? (1U | 1U << T.split) : (1U | 1U << T.split | 1U << 2 * T.split | 1U << 3 * T.split);
        const u32 offset = block.side * (T.tokens / T.multicast);
        ptx::tma_load_multicast(target + offset * kDequantPart * 2, &p.x, full, x, static_cast<i32>(token + offset),
                                static_cast<u16>(kSides << block.rank));
      } else {
        ptx::tma_load(target, &p.x, full, x, static_cast<i32>(token));
      }
    }
    ring.advance();
  }

  // One thread fills the stages.
  INGOT_DEVICE void run() {
    DequantWalk<T> walk(p, block.side);
    // Codes that will not be read again are the first to leave the L2.
    const u64 policy = walk.tiles_m == 1 ? ptx::createpolicy_evict_first() : ptx::createpolicy_evict_normal();
    INGOT_UNROLL_BY(1)
    for (; walk.more(); walk.advance()) {
      const u32 first = walk.row() / kDequantRows;
      const u32 count = min_of(kBlocks, blocks - min_of(first, blocks));
      INGOT_UNROLL_BY(1)
      for (u32 stage = span.begin; stage < span.end; ++stage) load(first, count, walk.token(), stage, policy);
    }
  }
};
#endif

}  // namespace ingot
