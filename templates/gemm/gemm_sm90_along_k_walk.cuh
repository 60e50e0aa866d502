// The parts of gemm_sm90 that a grouped GEMM along K has of its own: the order of its tiles, the thread that loads
// their operands, and the threads that set to zero what a stage holds of other experts' columns.
// (gemm_sm90_along_k.cuh has the arithmetic.)
//
// Such a stage's bytes are counted by its `landed` barrier. Two warps of the producer's warpgroup wait for that, set
// the other experts' columns of both operands to zero (a product of zero and another expert's NaN would be NaN), and
// then arrive at the stage's `full` barrier. So the warpgroups that multiply know nothing of it. All other stages'
// bytes are counted by `full` itself.
#pragma once

#include "gemm/gemm_sm90_along_k.cuh"
#include "gemm/gemm_sm90_grouped_walk.cuh"
#include "gemm/gemm_sm90_producer.cuh"
#include "gemm/gemm_sm90_tiling.cuh"
#include "gemm/stage_ring.cuh"
#include "platform.cuh"
#include "ptx/cluster.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/shared.cuh"
#include "ptx/tma.cuh"

namespace ingot {

#if INGOT_ON_DEVICE
// The tiles of this block, one after the other, as Sm90Walk has them: all of one expert, then those of the next. Step:
// columns along K of a stage. Whatever follows from the index is computed again where it is needed: a thread that
// multiplies has no registers to keep it in.
template <GemmSm90Config C, u32 Step, Sm90Tiling T = C.tiling>
struct Sm90AlongKWalk {
  const Sm90GemmParams& p;
  const Sm90Block<C>& block;
  u32 index;

  INGOT_DEVICE Sm90AlongKWalk(const Sm90GemmParams& params, const Sm90Block<C>& b)
      : p(params), block(b), index(blockIdx.x / sm90_cluster_size(T)) {}

  // From one of this block's tiles to its next one.
  INGOT_DEVICE static u32 apart() { return gridDim.x / sm90_cluster_size(T); }
  INGOT_DEVICE u32 tiles_of_expert() const { return sm90_along_k_tiles(T, p.m, p.n); }
  INGOT_DEVICE bool more() const { return block.experts.experts * tiles_of_expert() > index; }
  INGOT_DEVICE void advance(u32 tiles = 1) { index += tiles * apart(); }

  // Of the current tile.
  INGOT_DEVICE u32 expert() const { return index / tiles_of_expert(); }
  INGOT_DEVICE Sm90Stretch<Step> stretch() const {
    const u32 own = block.stages + sm90_experts_offset(C) + 4 * expert();
    const u32 before = expert() == 0 ? 0 : ptx::ld_shared4(own - 4);
    if constexpr (has_extents(C.scale_b)) {
      return Sm90Stretch<Step>::of_slots(before, ptx::ld_shared4(own), expert());
    } else {
      return {before, ptx::ld_shared4(own)};
    }
  }
  // Its first row and column, of the expert's output.
  INGOT_DEVICE Sm90TileIndex first() const {
    const Sm90TileIndex tile = sm90_tile_index(index % tiles_of_expert(), sm90_tiles_m(T, p.m), sm90_tiles_n(T, p.n));
    return {(tile.m * T.cluster_m + (T.cluster_m > 1 ? block.rank : 0)) * T.m,
            (tile.n * T.cluster_n + (T.cluster_n > 1 ? block.rank : 0)) * T.n};
  }
};

// Fills the stages; one thread runs it.
template <GemmSm90Config C, u32 Step, Sm90Tiling T = C.tiling>
INGOT_DEVICE void sm90_produce_along_k(const Sm90GemmParams& p, const Sm90Block<C>& block) {
  StageRing<T.stages> ring;
  INGOT_UNROLL_BY(1)
  for (Sm90AlongKWalk<C, Step> walk(p, block); walk.more(); walk.advance()) {
    const Sm90Slices<T> slices(p, walk.first(), block.rank);
    const Sm90Stretch<Step> stretch = walk.stretch();
    u32 x = stretch.column(0);
    INGOT_UNROLL_BY(1)
    do {
      const bool whole = stretch.begin <= x && x + Step <= stretch.end;
      const u32 counts = (whole ? block.full : block.landed()) + 8 * ring.stage;
      const u32 a = block.stages + ring.stage * sm90_stage_bytes(T);
      ptx::mbarrier_wait(block.empty + 8 * ring.stage, ring.phase ^ 1);
      if (stretch.is_empty()) {
        ptx::mbarrier_arrive(counts);  // all of the stage will be zeros
      } else {
        ptx::mbarrier_arrive_expect_tx(counts, slices.a.bytes + slices.b.bytes);
        sm90_load_slice<T.cluster_n>(slices.a, a, counts, static_cast<i32>(x));
        sm90_load_slice<T.cluster_m>(slices.b, a + T.m * kSm90Depth, counts, static_cast<i32>(x));
      }
      ring.advance();
      x += Step;
    } while (x < stretch.end);
  }
}

// Sets to zero what stages hold of other experts' columns. kSm90EdgeThreads threads run it.
template <GemmSm90Config C, u32 Step, Sm90Tiling T = C.tiling>
struct Sm90Edges {
  static constexpr u32 kColumnBytes = kSm90Depth / Step;
  static constexpr u32 kRowsAtOnce = kSm90EdgeThreads * 16 / kSm90Depth;
  static_assert(kRowsAtOnce % 8 == 0 && kSm90EdgeThreads % 8 == 0, "rows at the same place of the swizzle");
  static_assert((T.m + T.n) % kSm90EdgeThreads == 0);

  const Sm90GemmParams& p;
  const Sm90Block<C>& block;
  u32 thread;
  u32 rounds = 0;  // of each stage's `landed` barrier, modulo 2

  INGOT_DEVICE Sm90Edges(const Sm90GemmParams& params, const Sm90Block<C>& b)
      : p(params), block(b), thread(threadIdx.x % kSm90EdgeThreads) {}

  // Bytes `from` to `to` of each row stay. Units of 16 bytes that hold none of them are written only, a unit of every
  // eighth row by each thread.
  INGOT_DEVICE void clear(u32 stage, u32 from, u32 to) const {
    const u32 at = thread % 8 * 16;
    if (at + 16 <= from || to <= at) {
      u32 place = stage + address(thread / 8, thread % 8);
      INGOT_UNROLL_BY(8)
      for (u32 row = 0; row < T.m + T.n; row += kRowsAtOnce) {
        ptx::st_shared16(place, {});
        place += kRowsAtOnce * kSm90Depth;
      }
    }
    const bool first = from % 16 != 0;
    if (first) clear_part(stage, from / 16, from, to);
    if (to % 16 != 0 && !(first && from / 16 == to / 16)) clear_part(stage, to / 16, from, to);
  }

  // The same for a unit of which some bytes stay, or none if from = to.
  INGOT_DEVICE void clear_part(u32 stage, u32 unit, u32 from, u32 to) const {
    const u32 at = unit * 16;
    const U32x4 kept = {sm90_bytes_within(at, from, to), sm90_bytes_within(at + 4, from, to),
                        sm90_bytes_within(at + 8, from, to), sm90_bytes_within(at + 12, from, to)};
    u32 place = stage + address(thread, unit);
    INGOT_UNROLL_BY(2)
    for (u32 row = 0; row < T.m + T.n; row += kSm90EdgeThreads) {
      const U32x4 all = ptx::ld_shared16(place);
      ptx::st_shared16(place, {all.x & kept.x, all.y & kept.y, all.z & kept.z, all.w & kept.w});
      place += kSm90EdgeThreads * kSm90Depth;
    }
  }

  // Of a unit, in the swizzle that the copy engine writes.
  INGOT_DEVICE static u32 address(u32 row, u32 unit) { return row * kSm90Depth + (unit ^ row % 8) * 16; }

  // All of the threads see each phase of a `landed` barrier: none passes it on before all have done their part.
  INGOT_DEVICE void finish(u32 stage, u32 from, u32 to) {
    ptx::mbarrier_wait(block.landed() + 8 * stage, rounds >> stage & 1);
    rounds ^= 1U << stage;
    clear(block.stages + stage * sm90_stage_bytes(T), from * kColumnBytes, to * kColumnBytes);
    ptx::fence_proxy_async();  // the tensor cores read what was written here
    ptx::named_barrier_sync(kSm90EdgeBarrier, kSm90EdgeThreads);
    if (thread == 0) ptx::mbarrier_arrive(block.full + 8 * stage);
  }

  INGOT_DEVICE void run() {
    StageRing<T.stages> ring;
    INGOT_UNROLL_BY(1)
    for (Sm90AlongKWalk<C, Step> walk(p, block); walk.more(); walk.advance()) {
      const Sm90Stretch<Step> stretch = walk.stretch();
      const u32 last = stretch.steps() - 1;
      INGOT_UNROLL_BY(1)
      for (u32 step = 0; step <= last; step += max_of(last, 1U)) {
        if (!stretch.is_whole(step)) finish(ring.stage, stretch.from(step), stretch.to(step));
        ring.advance(step == last ? 1 : last);
      }
    }
  }
};
#endif

}  // namespace ingot
