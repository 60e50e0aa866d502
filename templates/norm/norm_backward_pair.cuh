// The backward pass of LayerNorm and RMSNorm (norm_backward.cuh) of rows of 16-bit elements for which two blocks'
// shared memory has room, but one block's has not: a pair of blocks shares the rows of a chunk (norm_pair.cuh), in the
// schedule of NormBackward::slot_rows(). It takes only rows that can be read and written 8 elements at a time.
//
// A pair takes several chunks, one after the other, so that the first rows of the next are on their way when it stores
// the sums over the rows of one.
//
// The bits are those of norm_backward: the chunks are the same, each column belongs to one thread, and a row's sums
// keep their order.
#pragma once

#include "cluster.cuh"
#include "memory.cuh"
#include "norm/norm.cuh"
#include "norm/norm_backward.cuh"
#include "norm/norm_pair.cuh"
#include "platform.cuh"
#include "shared.cuh"

namespace ingot {

struct NormBackwardPairLaunch {
  static constexpr u32 kThreads = 2 * NormPairLaunch::kSummingThreads;  // of a block
  INGOT_HOST_DEVICE static constexpr u32 shared_bytes(i64 cols, bool centred, u32 slot_rows) {
    const u32 sums = static_cast<u32>(centred ? sizeof(NormPairShared<2>) : sizeof(NormPairShared<1>));
    return sums + slot_rows * 2 * NormPairLaunch::row_bytes(cols);
  }
  // How many rows' halves a block holds, if a multiprocessor has room for two: without sums over rows in two blocks, or
  // both in one, as with sums. Otherwise 0.
  INGOT_HOST_DEVICE static constexpr u32 slot_rows(i64 cols, bool affine, bool centred, u32 block_shared) {
    const u32 vec8s = min_of(NormPairLaunch::kMaxVec8s, NormBackwardLaunch::slot_vec8s(centred, affine));
    if (cols < NormPairLaunch::kMinCols || cols > i64{2 * vec8s} * NormPairLaunch::kColsPerStep) return 0;
    if (!affine && shared_bytes(cols, centred, 1) <= dynamic_shared_room(block_shared, 2)) return 1;
    return shared_bytes(cols, centred, 2) <= dynamic_shared_room(block_shared, 1) ? 2 : 0;
  }
  // The pairs of a launch, which share its chunks evenly (without sums over rows, its rows): none is without.
  INGOT_HOST_DEVICE static constexpr i64 pairs(i64 chunks, i64 at_once) {
    return ceil_div(chunks, ceil_div(chunks, at_once));
  }
};

// The pair that takes some chunks.
template <class In, class Kind, NormBackwardConfig C>
struct NormBackwardPair {
  using Rows = NormBackward<In, Kind, C>;
  static constexpr u32 kSums = Rows::kSums;
  using Shared = NormPairShared<kSums>;
  static constexpr u32 kSlotStep = NormPairLaunch::kStepBytes;
  static_assert(sizeof(Shared) % 16 == 0);

  const Rows& rows;
  NormPair<kSums> half;
  static constexpr bool kManyChunks = true;
  u32 begin, end;

  INGOT_DEVICE NormBackwardPair(const Rows& all, Shared& shared)
      : rows(all), half{shared, static_cast<u32>(all.p.cols)}, begin(half.begin()), end(half.end()) {}

  INGOT_DEVICE static void start() { cluster_started(); }
  INGOT_DEVICE u32 column(u32 i) const { return begin + i * NormPairLaunch::kColsPerStep; }
  INGOT_DEVICE bool inside(u32 i) const { return column(i) < end; }
  INGOT_DEVICE u32 slot(u32 index) const {
    const u32 first = shared_memory() + static_cast<u32>(sizeof(Shared)) + half.first_slot();
    return first + index * 2 * grad_offset();
  }
  INGOT_DEVICE u32 grad_offset() const { return NormPairLaunch::row_bytes(rows.p.cols); }
  // Found out again for each row, which costs less than a register.
  INGOT_DEVICE u32 chunk_rows() const {
    return static_cast<u32>(NormBackwardLaunch::rows_per_chunk(rows.p.rows, rows.p.cols));
  }
  INGOT_DEVICE bool ends_chunk(i64 row) const {
    return row + 1 == rows.end_row || static_cast<u32>(row + 1) % chunk_rows() == 0;
  }
  // Those of the chunk that has this row.
  INGOT_DEVICE float* partials(i64 row) const {
    return rows.p.partials + static_cast<u32>(row) / chunk_rows() * (kSums * rows.p.cols);
  }
  INGOT_DEVICE void take(u32 i, const float (&g)[kVec8], const float (&xhat)[kVec8], float (&sums)[kSums]) const {
    float part[kSums] = {};
    Rows::take(g, xhat, kVec8, part);
    half.take(i, part, sums);
  }
  INGOT_DEVICE void total(float (&sums)[kSums], u32 left) const {
    const u32 turn = static_cast<u32>(rows.end_row - rows.first_row) - left;
    half.total(sums, half.shared.sums[turn % 2], turn / 2);
  }
};

// Params as for norm_backward. The grid has NormBackwardPairLaunch::pairs().
template <class In, class Kind, NormBackwardConfig C>
INGOT_KERNEL void INGOT_LAUNCH_BOUNDS(NormBackwardPairLaunch::kThreads, C.affine ? 1 : 2)
    norm_backward_pair(const __grid_constant__ NormBackwardParams p) {
  static_assert(sizeof(In) == 2);
  if constexpr (kHasClusters) {
    using Pair = NormBackwardPair<In, Kind, C>;
    auto& shared = dynamic_shared_as<typename Pair::Shared>();
    cluster_start_with(shared.sums[0], shared.sums[1]);
    start_in_turn();
    typename Pair::Rows rows(p);
    const i64 chunk_rows = C.affine ? NormBackwardLaunch::rows_per_chunk(p.rows, p.cols) : 1;
    const i64 pair_rows = ceil_div(ceil_div(p.rows, chunk_rows), i64{cluster_count()}) * chunk_rows;
    rows.first_row = ClusterPlace::here().index * pair_rows;
    rows.end_row = min_of(p.rows, rows.first_row + pair_rows);
    rows.slot_rows(Pair(rows, shared));
  }
}

}  // namespace ingot
