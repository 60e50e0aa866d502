// The backward pass of LayerNorm and RMSNorm (norm_backward.cuh) of rows that are too wide for the registers of one
// block: the blocks of a cluster share the rows of a chunk, so each byte of the inputs is read once here too. It takes
// only rows that can be read and written 8 elements at a time.
//
// The bits are those of norm_backward: the sums over rows, because each column belongs to one thread, and a row's sums,
// because they keep the order of 512 threads, as norm_rows_wide.cuh says. Here a warp holds two of the units.
#pragma once

#include "cluster.cuh"
#include "memory.cuh"
#include "norm/norm.cuh"
#include "norm/norm_backward.cuh"
#include "numerics.cuh"
#include "platform.cuh"
#include "reduce.cuh"
#include "vec8.cuh"

namespace ingot {

// Four blocks for rows of up to 16384 columns, in which two have room on a multiprocessor; eight for longer ones.
struct NormBackwardWideLaunch {
  static constexpr u32 kSummingWarps = 16;
  static constexpr u32 kMaxThreads = NormBackwardLaunch::kThreads;
  static constexpr u32 kVec8s = NormBackwardLaunch::kVec8s;
  static constexpr u32 kMaxUnits = kMaxThreads / 32 * kVec8s;  // in a block
  static constexpr i64 kColsPerUnit = 32 * kVec8;
  static constexpr i64 kMinCols = i64{NormBackwardLaunch::kThreads} * kVec8s * kVec8 + 1;
  static constexpr i64 kMaxCols = kMaxClusterBlocks * kMaxUnits * kColsPerUnit;
  INGOT_HOST_DEVICE static constexpr u32 blocks(i64 cols) {
    return cols <= i64{kSummingWarps} * 4 * kColsPerUnit ? 4 : kMaxClusterBlocks;
  }
  INGOT_HOST_DEVICE static constexpr u32 threads(i64 cols) {  // in each block
    return static_cast<u32>(ceil_div(cols, kColsPerUnit * blocks(cols) * kVec8s)) * 32;
  }
};

struct NormBackwardWideShared {
  float parts[2][NormBackwardWideLaunch::kMaxUnits * 32];  // the sums of 8 columns
  u32 sums[2][2 * NormBackwardWideLaunch::kSummingWarps];  // those of the summing warps, as bits; two rows in turn
};

// A block sums for every 4th (8th) of the 16 warps, beginning with its rank. Its units are numbered by groups of 4096
// columns, and within such a group by these warps; each warp of the block holds two.
struct NormBackwardWideUnits {
  ClusterPlace place = ClusterPlace::here();
  INGOT_DEVICE u32 warps() const { return place.blocks == kMaxClusterBlocks ? 2 : 4; }  // whose sums the block makes
  INGOT_DEVICE u32 first() const { return threadIdx.x / 32 * NormBackwardWideLaunch::kVec8s; }
  INGOT_DEVICE u32 count() const { return blockDim.x / 32 * NormBackwardWideLaunch::kVec8s; }
  // The first column of the thread's first vec8; that of the second is stride() further on.
  INGOT_DEVICE u32 first_column() const {
    constexpr u32 kPerStep = NormBackwardWideLaunch::kSummingWarps * 32 * kVec8;
    const u32 step = first() / warps();
    const u32 warp = first() % warps() * place.blocks + place.rank;
    return step * kPerStep + (warp * 32 + threadIdx.x % 32) * kVec8;
  }
  INGOT_DEVICE u32 stride() const { return place.blocks * (32 * kVec8); }
};
static_assert(NormBackwardWideLaunch::kVec8s == 2);  // so that both units of a warp are of one group

// The sums over the row, for all threads of the cluster. parts[i]: those of the thread's vec8 i, 0 past the end of the
// row.
template <u32 Count>
INGOT_DEVICE void norm_backward_wide_sums(const float (&parts)[NormBackwardWideLaunch::kVec8s][Count],
                                          float (&totals)[Count], NormBackwardWideShared& shared,
                                          u32 (&sums)[2 * NormBackwardWideLaunch::kSummingWarps]) {
  constexpr u32 kWarps = NormBackwardWideLaunch::kSummingWarps;
  const NormBackwardWideUnits units;
  const u32 lane = threadIdx.x % 32;
  const u32 warp = threadIdx.x / 32;
  INGOT_UNROLL
  for (u32 i = 0; i < NormBackwardWideLaunch::kVec8s; ++i) {
    INGOT_UNROLL
    for (u32 k = 0; k < Count; ++k) shared.parts[k][(units.first() + i) * 32 + lane] = parts[i][k];
  }
  __syncthreads();
  if (warp < units.warps()) {
    INGOT_UNROLL
    for (float& total : totals) total = 0.0F;
    INGOT_UNROLL_BY(4)
    for (u32 unit = warp; unit < units.count(); unit += units.warps()) {
      INGOT_UNROLL
      for (u32 k = 0; k < Count; ++k) totals[k] = totals[k] + shared.parts[k][unit * 32 + lane];
    }
    INGOT_UNROLL
    for (u32 k = 0; k < Count; ++k) {
      totals[k] = warp_sum(totals[k]);
      if (lane < units.place.blocks) {
        send_word(sums, k * kWarps + warp * units.place.blocks + units.place.rank, lane, float_bits(totals[k]));
      }
    }
  }
  cluster_barrier();
  INGOT_UNROLL
  for (u32 k = 0; k < Count; ++k) {
    totals[k] = float_from_bits(sums[k * kWarps]);
    INGOT_UNROLL
    for (u32 w = 1; w < kWarps; ++w) totals[k] = totals[k] + float_from_bits(sums[k * kWarps + w]);
  }
}

template <class In, class Kind, NormBackwardConfig C>
struct NormBackwardWide {
  using Rows = NormBackward<In, Kind, C>;
  static constexpr u32 kVec8s = Rows::kVec8s;
  static constexpr u32 kSums = Rows::kSums;

  Rows rows;
  u32 chunk, begin, stride;

  INGOT_DEVICE explicit NormBackwardWide(const NormBackwardParams& p) : rows(p) {
    const NormBackwardWideUnits units;
    chunk = units.place.index;
    begin = units.first_column();
    stride = units.stride();
    rows.first_row = i64{chunk} * NormBackwardLaunch::rows_per_chunk(p.rows, p.cols);
    rows.end_row = min_of(p.rows, rows.first_row + NormBackwardLaunch::rows_per_chunk(p.rows, p.cols));
  }

  INGOT_DEVICE u32 column(u32 i) const { return begin + i * stride; }
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

  INGOT_DEVICE void all_rows(NormBackwardWideShared& shared) const {
    float over_rows[kVec8s][kSums][kVec8] = {};
    Vec8<In> gammas[kVec8s] = {};
    INGOT_UNROLL
    for (u32 i = 0; i < kVec8s; ++i) {
      if (C.affine && inside(i)) gammas[i] = load_vec8_again(rows.gamma() + column(i));
    }
    typename Rows::Row next;
    if constexpr (Rows::kAhead) next = load(rows.first_row);
    cluster_started();
    INGOT_UNROLL_BY(1)
    for (i64 row = rows.first_row; row < rows.end_row; ++row) {
      typename Rows::Row current = Rows::kAhead ? next : load(row);
      if constexpr (Rows::kAhead) next = load(row + 1);
      float parts[kVec8s][kSums] = {};
      INGOT_UNROLL
      for (u32 i = 0; i < kVec8s; ++i) {
        float xhat[kVec8];
        float g[kVec8];
        unpack(current.x[i], xhat);
        unpack(current.grad[i], g);
        Rows::normalise(xhat, current.s);
        if (inside(i)) {
          if constexpr (C.affine) Rows::take_row(g, xhat, over_rows[i]);
          Rows::scale_kept(g, gammas[i]);
          Rows::take(g, xhat, kVec8, parts[i]);
        }
        forget_values(current.x[i]);
        forget_values(current.grad[i]);
      }
      float means[kSums];
      norm_backward_wide_sums(parts, means, shared, shared.sums[(row - rows.first_row) % 2]);
      rows.to_means(means);
      INGOT_UNROLL
      for (u32 i = 0; i < kVec8s; ++i) {
        if (!inside(i)) continue;
        float xhat[kVec8];
        float g[kVec8];
        unpack(current.x[i], xhat);
        unpack(current.grad[i], g);
        Rows::normalise(xhat, current.s);
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
          Rows::store_partials(rows.p.partials + (chunk * kSums + k) * rows.p.cols + column(i), over_rows[i][k]);
        }
      }
    }
  }
};

// Params as for norm_backward. Cluster i of the grid takes chunk i.
template <class In, class Kind, NormBackwardConfig C>
INGOT_KERNEL void INGOT_LAUNCH_BOUNDS(NormBackwardWideLaunch::kMaxThreads, 1)
    norm_backward_wide(const __grid_constant__ NormBackwardParams p) {
  if constexpr (kHasClusters) {
    cluster_start();
    start_in_turn();
    NormBackwardWide<In, Kind, C>(p).all_rows(dynamic_shared_as<NormBackwardWideShared>());
  }
}

}  // namespace ingot
