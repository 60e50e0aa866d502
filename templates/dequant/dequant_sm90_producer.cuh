// The parameters of dequant_sm90, and how its operands get to shared memory: barriers, the order of tiles, and the
// threads that keep the ring of stages filled.
#pragma once

#include "dequant/dequant_experts.cuh"
#include "dequant/dequant_factors.cuh"
#include "dequant/dequant_layout.cuh"
#include "dequant/dequant_sm90_tiling.cuh"
#include "gemm/gemm_epilogue.cuh"
#include "gemm/stage_ring.cuh"
#include "gemm/stream_k.cuh"
#include "memory.cuh"
#include "platform.cuh"
#include "ptx/bulk.cuh"
#include "ptx/cluster.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/memory.cuh"
#include "ptx/mma.cuh"
#include "ptx/opaque.cuh"
#include "ptx/shared.cuh"
#include "ptx/tma.cuh"

namespace ingot {

struct DequantSm90Params {
  TensorMap x;        // [m, k], 128-byte swizzle; boxes of 64 k x dequant_x_box() tokens
  const u8* weights;  // packed (dequant_layout.cuh), from a multiple of 16 bytes
  const void* factors;
  const void* bias;  // in x's dtype; null: none
  void* out;
  i64 out_stride;  // elements
  u32 m, n, k;
  u32 factor_stride;    // for groups and blocks: from one row of scale_inv to the next
  u32 constant_weight;  // not 0: codes and scale_inv were written before any launch
  EpilogueParams epilogue;
  StreamKParams cut;       // for stream-K
  DequantExperts experts;  // for a tiling with experts: m is then the rows of all of them, n the columns of one
};

#if INGOT_ON_DEVICE
#if !defined(__CUDA_ARCH_FEAT_SM90_ALL)
#error "dequant_sm90.cuh is for sm_90a: other targets have no wgmma"
#endif

// Addresses in shared memory, and this block's position in its cluster.
template <CodeFormat W, DequantFactors Kind, DequantSm90Tiling T>
struct DequantBlock {
  static constexpr u32 kWarps = 4 * T.groups;                          // warps that multiply
  static constexpr bool kFactors = Kind.into_codes;                    // do scale_inv come with their stage?
  u32 stages, factors, inbox, scratch, full, empty, arrived, drained;  // arrived: one per inbox
  u32 rank;                                                            // among the blocks that split a tile's k
  u32 side;                                                            // among the blocks that share x
  ExpertTable experts{};                                               // if there are any

  INGOT_DEVICE static DequantBlock make() {
    u32 base = ptx::dynamic_shared();
    ptx::opaque(base);  // otherwise the compiler computes it again wherever it is needed
    const u32 barriers = base + dequant_barriers_offset<W>(T, Kind);
    const u32 in_cluster = dequant_cluster(T) > 1 ? ptx::cluster_rank() : 0;
    return {.stages = base,
            .factors = base + dequant_factors_offset<W>(T),
            .inbox = base + dequant_inbox_offset<W>(T, Kind),
            .scratch = base + dequant_scratch_offset<W>(T, Kind),
            .full = barriers,
            .empty = barriers + 8 * T.stages,
            .arrived = barriers + 16 * T.stages,
            .drained = barriers + 16 * T.stages + 16,
            .rank = in_cluster % T.split,
            .side = in_cluster / T.split};
  }

  INGOT_DEVICE void make_barriers() const {
    INGOT_UNROLL_BY(1)
    for (u32 i = 0; i < T.stages; ++i) {
      ptx::mbarrier_init(full + 8 * i, kFactors ? 2 + 32 : 2);
      ptx::mbarrier_init(empty + 8 * i, kWarps * T.multicast);
    }
    // With a split, `arrived` counts bytes from the blocks of the cluster; otherwise it counts this block's own warps.
    constexpr u32 kArrivals = kWarps * ptx::kArrivalsOfWarp;
    for (u32 i = 0; i < 2; ++i) ptx::mbarrier_init(arrived + 8 * i, T.split > 1 ? 1 : kArrivals);
    ptx::mbarrier_init(drained, T.split > 1 ? kWarps * T.split : kArrivals);
    ptx::fence_mbarrier_init();
  }

  // All threads call it, after start_in_turn().
  INGOT_DEVICE void find_experts(const DequantSm90Params& p) {
    auto* const memory = reinterpret_cast<u32*>(ptx::dynamic_shared_pointer() + dequant_experts_offset<W>(T, Kind));
    experts = make_expert_table(p.experts, memory, p.m, dequant_threads(T, Kind), DequantExpertTiles<T>{p.n});
  }

  // Waits until every thread knows of the barriers.
  INGOT_DEVICE static void begin() {
    if constexpr (dequant_cluster(T) > 1) {
      ptx::cluster_arrive_relaxed();
      ptx::cluster_wait();
    } else {
      __syncthreads();
    }
  }
  // No block may leave while another may still send to it or arrive at its barriers. (Sums need no such care: a block
  // has waited for those sent to it, and nobody reports that the last of them were read.)
  INGOT_DEVICE static void end() {
    if constexpr (T.multicast > 1) {
      __syncwarp();
      ptx::cluster_sync();
    }
  }
};

// What a tile has of the operands: all of them, or those of its expert.
template <DequantSm90Tiling T>
INGOT_DEVICE u32 dequant_end_m(const DequantSm90Params& p, [[maybe_unused]] const DequantExpert& expert) {
  if constexpr (T.experts) {
    return expert.row_end;
  } else {
    return p.m;
  }
}
template <DequantSm90Tiling T>
INGOT_DEVICE const u8* dequant_weight(const DequantSm90Params& p, const DequantExpert& expert) {
  return static_cast<const u8*>(operand_of_expert<T.experts>(p.weights, p.experts.weight_bytes, expert));
}
template <DequantSm90Tiling T>
INGOT_DEVICE const void* dequant_factors(const DequantSm90Params& p, const DequantExpert& expert) {
  return operand_of_expert<T.experts>(p.factors, p.experts.factor_bytes, expert);
}

// The tiles of this block, one after the other. All tokens of the same rows come together, so that from the second time
// on their codes are in the L2. find() gives the current tile's expert; call it before the functions after it.
template <DequantSm90Tiling T, bool Cut = T.stream_k, bool Experts = T.experts>
struct DequantWalk {
  u32 tiles_m, tiles, index, step, side;
  DequantSpan stages;

  template <class Block>
  INGOT_DEVICE DequantWalk(const DequantSm90Params& p, const Block& block)
      : tiles_m(dequant_tiles_m(T, p.m)),
        tiles(tiles_m * dequant_tiles_n(T, p.n)),
        index(blockIdx.x / dequant_cluster(T)),
        step(gridDim.x / dequant_cluster(T)),
        side(block.side),
        stages(dequant_span(T, p.k, block.rank)) {}

  INGOT_DEVICE bool more() const { return tiles > index; }
  INGOT_DEVICE bool more_after() const { return tiles - index > step; }
  INGOT_DEVICE void advance() { index += step; }
  INGOT_DEVICE static DequantExpert find() { return {}; }
  INGOT_DEVICE bool reads_once() const { return tiles_m == 1; }  // has no other tile the same codes?
  INGOT_DEVICE u32 token() const { return index % tiles_m * T.tokens; }
  INGOT_DEVICE u32 row() const { return (index / tiles_m * T.multicast + side) * dequant_rows(T); }
  INGOT_DEVICE DequantSpan span() const { return stages; }
};
// The same for stream-K, where tiles are cut along k.
template <DequantSm90Tiling T>
struct DequantWalk<T, true, false> {
  u32 tiles_m;
  StreamKStretch stretch;

  template <class Block>
  INGOT_DEVICE DequantWalk(const DequantSm90Params& p, const Block& /*block*/)
      : tiles_m(dequant_tiles_m(T, p.m)), stretch(p.cut.split, blockIdx.x) {}

  INGOT_DEVICE bool more() const { return stretch.more(); }
  INGOT_DEVICE void advance() { stretch.advance(); }
  INGOT_DEVICE static DequantExpert find() { return {}; }
  INGOT_DEVICE bool reads_once() const { return tiles_m == 1; }
  INGOT_DEVICE u32 token() const { return stretch.span().tile % tiles_m * T.tokens; }
  INGOT_DEVICE u32 row() const { return stretch.span().tile / tiles_m * dequant_rows(T); }
  INGOT_DEVICE DequantSpan span() const { return {stretch.span().begin, stretch.span().end}; }
};
// The same where tiles have rows of experts. What the table holds is read again for each tile: a thread that multiplies
// has no registers to keep it in.
template <DequantSm90Tiling T>
struct DequantWalk<T, false, true> {
  const ExpertTable& table;
  u32 index, step, side;
  DequantSpan stages;
  u32 expert = 0;

  template <class Block>
  INGOT_DEVICE DequantWalk(const DequantSm90Params& p, const Block& block)
      : table(block.experts),
        index(blockIdx.x / dequant_cluster(T)),
        step(gridDim.x / dequant_cluster(T)),
        side(block.side),
        stages(dequant_span(T, p.k, block.rank)) {}

  INGOT_DEVICE bool more() const { return table.tiles() > index; }
  INGOT_DEVICE bool more_after() const { return table.tiles() - index > step; }
  INGOT_DEVICE void advance() { index += step; }
  INGOT_DEVICE DequantExpert find() {
    expert = table.expert_of(index, expert);
    return {expert, table.row_ends[expert]};
  }
  INGOT_DEVICE u32 tile() const { return index - table.first_tile(expert); }
  INGOT_DEVICE u32 tiles_m() const { return dequant_tiles_m(T, table.rows(expert)); }
  INGOT_DEVICE bool reads_once() const { return tiles_m() == 1; }
  INGOT_DEVICE u32 token() const { return table.first_row(expert) + tile() % tiles_m() * T.tokens; }
  INGOT_DEVICE u32 row() const { return (tile() / tiles_m() * T.multicast + side) * dequant_rows(T); }
  INGOT_DEVICE DequantSpan span() const { return stages; }
};

// Two threads, each of a different warp, fill the stages: one copies codes, the other x, because issuing a copy takes a
// thread some hundred cycles. scale_inv that are multiplied into the codes, a few bytes per row, are copied along with
// them by the whole warp of the first thread: a copy issued later would wait for everything that the ring has already
// requested.
template <CodeFormat W, DequantFactors Kind, DequantSm90Tiling T>
struct DequantProducer {
  static constexpr u32 kBlocks = dequant_rows(T) / kDequantRows;  // blocks of 64 rows
  static constexpr u32 kTileBytes = kDequantTileBytes<W>;
  static constexpr u32 kBlockBytes = T.depth / kDequantDepth * kTileBytes;
  static constexpr u32 kPartXBytes = T.tokens * kDequantPart * 2;

  const DequantSm90Params& p;
  const DequantBlock<W, Kind, T>& block;
  u32 parts;   // the number of 64-k parts of K
  u32 blocks;  // the number of 64-row blocks of N
  StageRing<T.stages> ring{};

  INGOT_DEVICE DequantProducer(const DequantSm90Params& params, const DequantBlock<W, Kind, T>& b)
      : p(params), block(b), parts(ceil_div(params.k, kDequantPart)), blocks(ceil_div(params.n, kDequantRows)) {}

  // How many 64-k parts a stage has.
  INGOT_DEVICE u32 parts_of(u32 stage) const { return min_of(dequant_parts(T), parts - stage * dequant_parts(T)); }
  INGOT_DEVICE u64 row_block_bytes() const { return u64{parts} * 2 * kTileBytes; }
  // The codes of a block of 64 rows, from `stage` on.
  INGOT_DEVICE const u8* codes(const DequantExpert& expert, u32 row_block, u32 stage) const {
    return dequant_weight<T>(p, expert) + row_block * row_block_bytes() + u64{stage} * kBlockBytes;
  }
  INGOT_DEVICE u32 row_blocks(u32 first) const { return min_of(kBlocks, blocks - min_of(first, blocks)); }

  // Runs in one thread, lane 0, or in a whole warp if scale_inv come with the codes.
  INGOT_DEVICE void run_codes(u32 lane) {
    DequantWalk<T> walk(p, block);
    u64 policy = 0;
    if constexpr (!T.experts) policy = policy_of(walk);
    INGOT_UNROLL_BY(1)
    for (; walk.more(); walk.advance()) {
      const DequantExpert expert = walk.find();
      if constexpr (T.experts) policy = policy_of(walk);
      const u32 row = walk.row();
      const u32 first = row / kDequantRows;
      const u32 count = row_blocks(first);
      const DequantSpan span = walk.span();
      const u8* from[kBlocks];
      INGOT_UNROLL
      for (u32 i = 0; i < kBlocks; ++i) from[i] = codes(expert, first + i, span.begin);
      INGOT_UNROLL_BY(1)
      for (u32 stage = span.begin; stage < span.end; ++stage) {
        const u32 bytes = parts_of(stage) * 2 * kTileBytes;
        const u32 full = block.full + 8 * ring.stage;
        const u32 to = block.stages + ring.stage * dequant_stage_bytes<W>(T);
        ptx::mbarrier_wait(block.empty + 8 * ring.stage, ring.phase ^ 1);
        if (lane == 0) {
          ptx::mbarrier_arrive_expect_tx(full, count * bytes);
          INGOT_UNROLL
          for (u32 i = 0; i < kBlocks; ++i) {
            if (i < count) ptx::bulk_load(to + i * kBlockBytes, from[i], bytes, full, policy);
            from[i] += kBlockBytes;
          }
        }
        if constexpr (DequantBlock<W, Kind, T>::kFactors) load_factors(expert, row, stage, lane);
        ring.advance();
      }
    }
  }

  // Codes that will not be read again leave the L2 first.
  INGOT_DEVICE static u64 policy_of(const DequantWalk<T>& walk) {
    return walk.reads_once() ? ptx::createpolicy_evict_first() : ptx::createpolicy_evict_normal();
  }

  // With experts, a box may reach into the rows of the next one, whose sums nobody stores.
  INGOT_DEVICE void load_x(u32 target, u32 full, u32 part, u32 token) {
    const i32 x = static_cast<i32>(part * kDequantPart);
    if constexpr (T.multicast > 1) {
      // Sends to all blocks of this rank.
      constexpr u32 kSides =
          T.multicast == 2 ? (1U | 1U << T.split) : (1U | 1U << T.split | 1U << 2 * T.split | 1U << 3 * T.split);
      const u32 offset = block.side * (T.tokens / T.multicast);
      ptx::tma_load_multicast(target + offset * kDequantPart * 2, &p.x, full, x, static_cast<i32>(token + offset),
                              static_cast<u16>(kSides << block.rank));
    } else {
      ptx::tma_load(target, &p.x, full, x, static_cast<i32>(token));
    }
  }

  INGOT_DEVICE void run_x() {
    constexpr u32 kBoxes = dequant_fits_tokens(T) ? T.tokens / 8 : 1;           // of a tile at most
    const u32 of_box = dequant_x_box(T, p.m) * T.multicast * kDequantPart * 2;  // bytes per 64 k
    INGOT_UNROLL_BY(1)
    for (DequantWalk<T> walk(p, block); walk.more(); walk.advance()) {
      const DequantExpert expert = walk.find();
      const u32 token = walk.token();
      const u32 boxes = kBoxes == 1 ? 1 : dequant_token_tiles(T, expert.row_end - token);
      const u32 bytes = boxes * of_box;
      const DequantSpan span = walk.span();
      INGOT_UNROLL_BY(1)
      for (u32 stage = span.begin; stage < span.end; ++stage) {
        const u32 now = parts_of(stage);
        const u32 full = block.full + 8 * ring.stage;
        const u32 to = block.stages + ring.stage * dequant_stage_bytes<W>(T) + dequant_code_bytes<W>(T);
        ptx::mbarrier_wait(block.empty + 8 * ring.stage, ring.phase ^ 1);
        ptx::mbarrier_arrive_expect_tx(full, now * bytes);
        INGOT_UNROLL
        for (u32 part = 0; part < dequant_parts(T); ++part) {
          INGOT_UNROLL
          for (u32 box = 0; box < kBoxes; ++box) {
            if (part >= now || box >= boxes) break;
            load_x(to + part * kPartXBytes + box * 1024, full, stage * dequant_parts(T) + part, token + 8 * box);
          }
        }
        ring.advance();
      }
    }
  }

  // Loads the scale_inv of a tile's rows, with a whole warp. It takes few instructions per row, because this warp also
  // copies codes.
  INGOT_DEVICE void load_factors(const DequantExpert& expert, u32 row, u32 stage, u32 lane) const {
    constexpr u32 kPitch = dequant_factor_pitch(T);
    const u32 first = stage * T.depth / 32 / kPitch * kPitch;
    const u32 there = ceil_div(p.k, 32U) - first;
    const u8* const all = static_cast<const u8*>(dequant_factors<T>(p, expert));
    const u8* const factors = all + first;
    const u32 alignment = static_cast<u32>(reinterpret_cast<u64>(all)) | p.factor_stride;
    const u32 full = block.full + 8 * ring.stage;
    const u32 to = block.factors + ring.stage * dequant_factor_bytes(T, Kind);
    if (alignment % kPitch == 0 && there >= kPitch) {
      load_rows<FactorCopy::whole>(to, factors, there, row + lane, lane);
    } else if (alignment % 4 == 0) {
      load_rows<FactorCopy::words>(to, factors, there, row + lane, lane);
    } else {
      load_rows<FactorCopy::bytes>(to, factors, there, row + lane, lane);
      ptx::mbarrier_arrive(full);
      return;
    }
    ptx::cp_async_mbarrier_arrive(full);
  }

  // Copies a row's scale_inv of a stage at once, in words, or byte by byte, as their alignment allows.
  enum class FactorCopy : u32 { whole, words, bytes };

  // row: the first of this lane's rows.
  template <FactorCopy How>
  INGOT_DEVICE void load_rows(u32 to, const u8* factors, u32 there, u32 row, u32 lane) const {
    constexpr u32 kPitch = dequant_factor_pitch(T);
    INGOT_UNROLL
    for (u32 i = 0; i < dequant_rows(T); i += 32) {
      const u32 target = to + (i + lane) * kPitch;
      const u8* const from = factors + u64{min_of(row + i, p.n - 1)} * p.factor_stride;
      if constexpr (How == FactorCopy::whole) {
        ptx::cp_async<kPitch>(target, from, kPitch);
      } else if constexpr (How == FactorCopy::words) {
        copy_words(target, from, there);
      } else {
        copy_bytes(target, from, there);
      }
    }
  }

  // Copies the `there` scale_inv that a row has, and fills the rest with zeros.
  INGOT_DEVICE static void copy_words(u32 to, const u8* from, u32 there) {
    INGOT_UNROLL
    for (u32 at = 0; at < dequant_factor_pitch(T); at += 4) {
      const u32 count = min_of(there - min_of(at, there), 4U);
      ptx::cp_async<4>(to + at, count == 0 ? from : from + at, count);
    }
  }
  INGOT_DEVICE static void copy_bytes(u32 to, const u8* from, u32 there) {
    INGOT_UNROLL
    for (u32 at = 0; at < dequant_factor_pitch(T); at += 4) {
      u32 four = 0;
      INGOT_UNROLL
      for (u32 i = 0; i < 4; ++i) {
        if (at + i < there) four |= u32{from[at + i]} << 8 * i;
      }
      ptx::st_shared4(to + at, four);
    }
  }
};
#endif

}  // namespace ingot
