// The backward pass of LayerNorm and RMSNorm (norm_backward.cuh) of rows of 8193 to 16384 columns that have no room in
// one block's shared memory, or are so few that not all multiprocessors would have one: the four blocks of a cluster
// share the rows of a chunk, so each byte of the inputs is read once here too. It takes only rows that can be read and
// written 8 elements at a time.
//
// The bits are those of norm_backward: the sums over rows, because each column belongs to one thread, and a row's sums,
// because they keep the order of 512 threads (norm_wide.cuh). Here a warp holds two units.
#pragma once

#include "cluster.cuh"
#include "memory.cuh"
#include "norm/norm.cuh"
#include "norm/norm_backward.cuh"
#include "norm/norm_wide.cuh"
#include "numerics.cuh"
#include "platform.cuh"
#include "reduce.cuh"
#include "vec8.cuh"

namespace ingot {

struct NormBackwardWideLaunch {
  static constexpr u32 kBlocks = kNormClusterBlocks;  // two have room on a multiprocessor
  static constexpr u32 kMaxThreads = 256;
  static constexpr u32 kVec8s = NormBackwardLaunch::kVec8s;
  static constexpr i64 kColsPerUnit = 32 * kVec8;
  static constexpr i64 kMinCols = i64{NormBackwardLaunch::kThreads} * kVec8s * kVec8 + 1;
  static constexpr i64 kMaxCols = kBlocks * kMaxNormUnits * kColsPerUnit;
  INGOT_HOST_DEVICE static constexpr u32 threads(i64 cols) {  // in each block
    return static_cast<u32>(ceil_div(cols, kColsPerUnit * kBlocks * kVec8s)) * 32;
  }
  // The dynamic shared memory of a block.
  INGOT_HOST_DEVICE static constexpr u32 shared_bytes(bool centred) {
    return static_cast<u32>(centred ? sizeof(NormWideShared<2>) : sizeof(NormWideShared<1>));
  }
};

static_assert(NormBackwardWideLaunch::kMaxThreads / 32 * NormBackwardWideLaunch::kVec8s == kMaxNormUnits);

static_assert(NormBackwardWideLaunch::kMaxCols == 16384);

// A block sums for every 4th of the 16 warps, beginning with its rank. Its units are numbered by groups of 4096
// columns, and within such a group by these warps; each warp of the block holds two.
struct NormBackwardWideUnits {
  ClusterPlace place = ClusterPlace::here();
  INGOT_DEVICE u32 first() const { return threadIdx.x / 32 * NormBackwardWideLaunch::kVec8s; }
  INGOT_DEVICE u32 count() const { return blockDim.x / 32 * NormBackwardWideLaunch::kVec8s; }
  // The first column of the thread's first vec8; that of the second is stride() further on.
  INGOT_DEVICE u32 first_column() const {
    constexpr u32 kPerStep = kNormSummingWarps * 32 * kVec8;
    const u32 step = first() / kNormWarpsOfBlock;
    const u32 warp = first() % kNormWarpsOfBlock * kNormClusterBlocks + place.rank;
    return step * kPerStep + (warp * 32 + threadIdx.x % 32) * kVec8;
  }
  INGOT_DEVICE static constexpr u32 stride() { return kNormClusterBlocks * (32 * kVec8); }
};
static_assert(NormBackwardWideLaunch::kVec8s == 2);  // so that both units of a warp are of one group

template <class In, class Kind, NormBackwardConfig C>
struct NormBackwardWide {
  using Rows = NormBackward<In, Kind, C>;
  static constexpr u32 kVec8s = Rows::kVec8s;
  static constexpr u32 kSums = Rows::kSums;
  // Is the next row loaded ahead? In f32, two rows do not fit the registers.
  static constexpr bool kAhead = sizeof(In) == 2;

  Rows rows;
  u32 chunk, begin;

  INGOT_DEVICE explicit NormBackwardWide(const NormBackwardParams& p) : rows(p) {
    const NormBackwardWideUnits units;
    chunk = units.place.index;
    begin = units.first_column();
    // Without sums over rows, the clusters of the launch share the rows evenly.
    const i64 chunk_rows =
        C.affine ? NormBackwardLaunch::rows_per_chunk(p.rows, p.cols) : ceil_div(p.rows, i64{cluster_count()});
    rows.first_row = min_of(p.rows, i64{chunk} * chunk_rows);
    rows.end_row = min_of(p.rows, rows.first_row + chunk_rows);
  }

  INGOT_DEVICE u32 column(u32 i) const { return begin + i * NormBackwardWideUnits::stride(); }
  INGOT_DEVICE bool inside(u32 i) const { return column(i) < static_cast<u32>(rows.p.cols); }

  INGOT_DEVICE typename Rows::Row load(i64 row) const {
    typename Rows::Row loaded;
    if (row >= rows.end_row) return loaded;
    INGOT_UNROLL
    for (u32 i = 0; i < kVec8s; ++i) {
      if (!inside(i)) continue;
      loaded.x[i] = load_vec8_once(rows.input(row) + column(i));
      loaded.grad[i] = load_vec8_once(rows.grad_output(row) + column(i));
    }
    loaded.s = rows.statistics(row);
    return loaded;
  }

  INGOT_DEVICE void all_rows(NormWideShared<kSums>& shared) const {
    float over_rows[kVec8s][kSums][kVec8] = {};
    Vec8<In> gammas[kVec8s] = {};
    INGOT_UNROLL
    for (u32 i = 0; i < kVec8s; ++i) {
      if (C.affine && inside(i)) gammas[i] = load_vec8_again(rows.gamma() + column(i));
    }
    typename Rows::Row next;
    if constexpr (kAhead) next = load(rows.first_row);
    cluster_started();
    INGOT_UNROLL_BY(1)
    for (i64 row = rows.first_row; row < rows.end_row; ++row) {
      typename Rows::Row current = kAhead ? next : load(row);
      if constexpr (kAhead) next = load(row + 1);
      float parts[kVec8s][kSums] = {};
      INGOT_UNROLL
      for (u32 i = 0; i < kVec8s; ++i) {
        float xhat[kVec8];
        float g[kVec8];
        Rows::unpack_pair(current.x[i], current.grad[i], current.s, xhat, g);
        if (inside(i)) {
          if constexpr (C.affine) Rows::take_row(g, xhat, over_rows[i]);
          Rows::scale_kept(g, gammas[i]);
          Rows::take(g, xhat, kVec8, parts[i]);
        }
        forget_values(current.x[i]);
        forget_values(current.grad[i]);
      }
      float means[kSums];
      const NormBackwardWideUnits units;
      const u32 turn = static_cast<u32>(row - rows.first_row);
      norm_wide_sums(
          parts, means, units.first(), units.count(), [&](u32 w) { return w * kNormClusterBlocks + units.place.rank; },
          shared, shared.sums[turn % 2], turn / 2);
      rows.to_means(means);
      INGOT_UNROLL
      for (u32 i = 0; i < kVec8s; ++i) {
        if (!inside(i)) continue;
        float xhat[kVec8];
        float g[kVec8];
        Rows::unpack_pair(current.x[i], current.grad[i], current.s, xhat, g);
        Rows::scale_kept(g, gammas[i]);
        store_vec8(rows.grad_input(row) + column(i), Rows::gradient(g, xhat, means, current.s));
      }
    }
    if constexpr (C.affine) {
      INGOT_UNROLL
      for (u32 i = 0; i < kVec8s; ++i) {
        if (!inside(i)) continue;
        INGOT_UNROLL
        for (u32 k = 0; k < kSums; ++k) {
          rows.template store_partials<WholeVec8s>(rows.p.partials + (chunk * kSums + k) * rows.p.cols, column(i),
                                                   over_rows[i][k]);
        }
      }
    }
  }
};

// Params as for norm_backward. With gamma, cluster i of the grid takes chunk i; without, there are no sums over rows,
// and there may be any number of clusters. On sm_120, it would spill in the registers that two blocks to a
// multiprocessor leave.
template <class In, class Kind, NormBackwardConfig C>
INGOT_KERNEL void INGOT_LAUNCH_BOUNDS(NormBackwardWideLaunch::kMaxThreads, kDeviceArch >= 1200 ? 1 : 2)
    norm_backward_wide(const __grid_constant__ NormBackwardParams p) {
  if constexpr (kHasClusters) {
    using Rows = NormBackwardWide<In, Kind, C>;
    using Shared = NormWideShared<Rows::kSums>;
    auto& shared = dynamic_shared_as<Shared>();
    cluster_start_with(shared.sums[0], shared.sums[1]);
    start_in_turn();
    Rows(p).all_rows(shared);
  }
}

}  // namespace ingot
