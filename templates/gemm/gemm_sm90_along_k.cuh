// Grouped GEMMs whose experts follow each other along K: each expert has some of the columns of A and B, and an output
// of its own, as the gradients of experts' weights have. Device memory says where an expert's columns end; this is how
// a block finds its tiles and the steps of each: constant arithmetic shared by the kernel, its launch and its tests.
//
// Every expert has as many tiles; their steps differ. A stage holds whole steps of K, so an expert's first and last
// one may also hold columns of its neighbours, which are set to zero (gemm_sm90_along_k_walk.cuh).
//
// With scale_inv of groups each expert's columns are in slots of its own (expert_slots.cuh): every step is a whole
// slot, and an expert without columns has one, of zeros.
#pragma once

#include "expert_slots.cuh"
#include "gemm/gemm_sm90_tiling.cuh"
#include "platform.cuh"

namespace ingot {

// The column at which an expert's columns end: within the matrices, whatever device memory holds.
INGOT_HOST_DEVICE constexpr u32 sm90_column_end(i32 end, u32 k) { return min_of(static_cast<u32>(max_of(end, 0)), k); }

// The same in slots, counted as if there were none: k has the slots of all experts.
INGOT_HOST_DEVICE constexpr u32 sm90_slots_end(i32 end, u32 k, u32 experts) {
  const i64 most = ExpertSlots::most_rows(k / static_cast<u32>(ExpertSlots::kRows), experts);
  return static_cast<u32>(min_of(i64{max_of(end, 0)}, max_of(most, i64{0})));
}

// An expert's columns, in steps of Step columns, which are 128 bytes. The first step begins at a multiple of 64 bytes:
// the L2 delivers other rows at half the speed (docs/notes/gemm.md). An expert without columns has one step, of which
// nothing counts: so its sums are zeros like all others.
template <u32 Step>
struct Sm90Stretch {
  u32 begin, end;

  INGOT_HOST_DEVICE constexpr Sm90Stretch(u32 before, u32 own_end) : begin(before), end(max_of(before, own_end)) {}

  // In slots, whose experts end at `before` and `own_end` as if there were none.
  INGOT_HOST_DEVICE static constexpr Sm90Stretch of_slots(u32 before, u32 own_end, u32 expert) {
    static_assert(Step == ExpertSlots::kRows);
    const u32 first = before / Step + expert;
    return {first * Step, (first + max_of(ceil_div(max_of(before, own_end) - before, Step), 1U)) * Step};
  }

  INGOT_HOST_DEVICE constexpr bool is_empty() const { return begin == end; }
  INGOT_HOST_DEVICE constexpr u32 column(u32 step) const { return begin / (Step / 2) * (Step / 2) + step * Step; }
  INGOT_HOST_DEVICE constexpr u32 steps() const { return max_of(ceil_div(end - column(0), Step), 1U); }

  // Of a step's columns, those from here to there are the expert's.
  INGOT_HOST_DEVICE constexpr u32 from(u32 step) const { return max_of(begin, column(step)) - column(step); }
  INGOT_HOST_DEVICE constexpr u32 to(u32 step) const { return min_of(end - column(step), Step); }
  INGOT_HOST_DEVICE constexpr bool is_whole(u32 step) const { return from(step) == 0 && to(step) == Step; }
};

// Of the four bytes at `at`, those at `from` to `to`, as the bits of a word.
INGOT_HOST_DEVICE constexpr u32 sm90_bytes_within(u32 at, u32 from, u32 to) {
  const u32 below = min_of(max_of(from, at) - at, 4U);
  const u32 within = min_of(max_of(to, at) - at, 4U);
  const auto first = [](u32 bytes) { return static_cast<u32>((u64{1} << 8 * bytes) - 1); };
  return first(within) & ~first(below);
}

// Cluster tiles of each expert, and blocks to launch.
INGOT_HOST_DEVICE constexpr u32 sm90_along_k_tiles(const Sm90Tiling& t, u32 m, u32 n) {
  return sm90_tiles_m(t, m) * sm90_tiles_n(t, n);
}
INGOT_HOST_DEVICE constexpr u32 sm90_along_k_blocks(const Sm90Tiling& t, u32 m, u32 n, u32 experts,
                                                    u32 multiprocessors) {
  const u32 size = sm90_cluster_size(t);
  const u64 tiles = u64{sm90_along_k_tiles(t, m, n)} * experts;
  return static_cast<u32>(min_of(tiles, u64{max_of(multiprocessors / size, 1U)})) * size;
}

}  // namespace ingot
