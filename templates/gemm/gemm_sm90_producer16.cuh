// The producer of gemm_sm90 for operands of bf16 and f16, in addition to gemm_sm90_producer.cuh: one thread keeps the
// ring filled, whether rows are stored along K or across. (FP8 has its own functions, so that its machine code stays as
// it was tuned.)
//
// A tile of an operand across K is loaded in boxes of 64 columns, one after the other, each with all rows of a step:
// 64 rows of 128 bytes, as large as 64 rows along K.
#pragma once

#include "gemm/gemm_sm90_producer.cuh"

namespace ingot {

#if INGOT_ON_DEVICE
// Two blocks of a cluster load half of a box's rows each. Boxes outside the matrix are not loaded; what a box holds
// beyond the last column or row is zeros.
template <u32 Rows>
INGOT_DEVICE Sm90Slice sm90_slice_across(const TensorMap& map, u32 first, u32 rows) {
  const u32 left = min_of(rows - min_of(first, rows), Rows);
  return {.map = &map,
          .row = static_cast<i32>(first),
          .offset = 0,
          .bytes = ceil_div(left, kSm90Step16) * kSm90Step16 * kSm90Depth,
          .some = left != 0};
}

template <u32 Rows, u32 Blocks, bool Across>
INGOT_DEVICE Sm90Slice sm90_slice16(const TensorMap& whole, const TensorMap& tail, u32 first, u32 rows, u32 rank) {
  if constexpr (Across) {
    return sm90_slice_across<Rows>(whole, first, rows);
  } else {
    return sm90_slice<Rows, Blocks>(whole, tail, first, rows, rank);
  }
}

// k: the step's first element.
template <u32 Rows, u32 Blocks, bool Across>
INGOT_DEVICE void sm90_load_slice16(const Sm90Slice& slice, u32 to, u32 full, i32 k, [[maybe_unused]] u32 rank) {
  if constexpr (Across) {
    constexpr u32 kBoxBytes = kSm90Step16 * kSm90Depth;
    constexpr u32 kBoxRows = kSm90Step16 / Blocks;
    const u32 part = Blocks > 1 ? rank : 0;
    INGOT_UNROLL
    for (u32 i = 0; i < Rows / kSm90Step16; ++i) {
      const Sm90Slice box{.map = slice.map,
                          .row = k + static_cast<i32>(part * kBoxRows),
                          .offset = part * kBoxRows * kSm90Depth,
                          .bytes = kBoxBytes,
                          .some = i * kBoxBytes < slice.bytes};
      sm90_load_slice<Blocks>(box, to + i * kBoxBytes, full, slice.row + static_cast<i32>(i * kSm90Step16));
    }
  } else {
    sm90_load_slice<Blocks>(slice, to, full, k);
  }
}

template <GemmSm90Config C, Sm90Tiling T = C.tiling>
struct Sm90Producer16 {
  const Sm90GemmParams& p;
  const Sm90Block<C>& block;
  StageRing<T.stages> ring{};

  // Steps `begin` to `end` of the tile that begins there.
  INGOT_DEVICE void load(const Sm90TileIndex& first, u32 begin, u32 end) {
    const Sm90Slice a = sm90_slice16<T.m, T.cluster_n, C.across_a>(p.a, p.tail_a, first.m, p.m, block.rank);
    const Sm90Slice b = sm90_slice16<T.n, T.cluster_m, C.across_b>(p.b, p.tail_b, first.n, p.n, block.rank);
    INGOT_UNROLL_BY(1)
    for (u32 step = begin; step < end; ++step) {
      const u32 full = block.full + 8 * ring.stage;
      const u32 stage = block.stages + ring.stage * sm90_stage_bytes(T);
      const i32 k = static_cast<i32>(step * kSm90Step16);
      ptx::mbarrier_wait(block.empty + 8 * ring.stage, ring.phase ^ 1);
      ptx::mbarrier_arrive_expect_tx(full, a.bytes + b.bytes);
      sm90_load_slice16<T.m, T.cluster_n, C.across_a>(a, stage, full, k, block.rank);
      sm90_load_slice16<T.n, T.cluster_m, C.across_b>(b, stage + T.m * kSm90Depth, full, k, block.rank);
      ring.advance();
    }
  }

  // Fills the stages; one thread runs it.
  INGOT_DEVICE void run() { sm90_load_tiles<C>(p, block, sm90_steps(p.k, kSm90Step16), *this); }
};
#endif

}  // namespace ingot
