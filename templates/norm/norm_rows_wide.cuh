// LayerNorm or RMSNorm (norm_rows.cuh) of rows that are too wide for the registers of one block: the blocks of a
// cluster share a row, so each input byte is read once here too. It takes only rows that can be read and written 8
// elements at a time.
//
// The bits are those of norm_rows. There, 512 threads sum a row, and here their sums are taken apart: a warp holds four
// of the units (32 of those threads, one group of 8 columns of each), the sums of 8 columns meet in shared memory, and
// one warp adds those of 32 threads in ascending order of columns.
#pragma once

#include "cluster.cuh"
#include "memory.cuh"
#include "norm/norm.cuh"
#include "norm/norm_rows.cuh"
#include "numerics.cuh"
#include "platform.cuh"
#include "reduce.cuh"
#include "scaling.cuh"
#include "vec8.cuh"

namespace ingot {

// Four blocks for up to 8 groups of columns per summing thread (32768 columns), eight for up to 16.
struct NormRowsWideLaunch {
  static constexpr u32 kSummingWarps = 16;
  static constexpr u32 kMaxThreads = 256;
  static constexpr u32 kVec8s = NormRowsLaunch::kVec8s;
  static constexpr u32 kMaxUnits = kMaxThreads / 32 * kVec8s;  // in a block
  static constexpr i64 kColsPerStep = i64{kSummingWarps} * 32 * kVec8;
  static constexpr i64 kMinCols = NormRowsLaunch::kMaxCols + 1;
  static constexpr i64 kMaxCols = kMaxClusterBlocks * kMaxThreads * kVec8s * kVec8;
  // The groups of 8 columns of a summing thread.
  INGOT_HOST_DEVICE static constexpr u32 steps(i64 cols) { return static_cast<u32>(ceil_div(cols, kColsPerStep)); }
  INGOT_HOST_DEVICE static constexpr u32 blocks(i64 cols) { return steps(cols) <= 8 ? 4 : kMaxClusterBlocks; }
  INGOT_HOST_DEVICE static constexpr u32 threads(i64 cols) {  // in each block
    return ceil_div(steps(cols) * (kSummingWarps / blocks(cols)), kVec8s) * 32;
  }
};

struct NormRowsWideShared {
  float parts[NormRowsWideLaunch::kMaxUnits * 32];  // the sums of 8 columns
  u32 sums[2][NormRowsWideLaunch::kSummingWarps];   // those of the summing warps, as bits
  u32 maxima[kMaxClusterWarps];
};

// The units of a block are numbered by steps, and within a step by the summing warps of the block; each warp holds
// four.
struct NormRowsWideUnits {
  ClusterPlace place = ClusterPlace::here();
  INGOT_DEVICE u32 warps() const { return place.blocks == kMaxClusterBlocks ? 2 : 4; }  // whose sums the block makes
  INGOT_DEVICE u32 first() const { return threadIdx.x / 32 * NormRowsWideLaunch::kVec8s; }
};

// The first column of the thread's vec8 i: two or four warps are one behind the other.
struct NormRowsWideColumns {
  u32 begin, stride;

  INGOT_DEVICE NormRowsWideColumns() {
    constexpr u32 kStep = static_cast<u32>(NormRowsWideLaunch::kColsPerStep);
    const NormRowsWideUnits units;
    const u32 warp = units.place.rank * units.warps();
    const u32 step = threadIdx.x / 32 * (units.warps() == 4 ? 1 : 2);
    begin = step * kStep + (warp * 32 + threadIdx.x % 32) * kVec8;
    stride = units.warps() == 4 ? 2 * 32 * kVec8 : kStep;
  }
  INGOT_DEVICE u32 operator()(u32 i) const { return begin + i % 2 * (32 * kVec8) + i / 2 * stride; }
};
static_assert(NormRowsWideLaunch::kVec8s == 4 && NormRowsWideLaunch::kSummingWarps == 16 && kMaxClusterBlocks == 8);

// Is the thread's vec8 i in the row?
struct NormRowsWideInside {
  const NormRowsWideColumns& column;
  u32 cols;
  INGOT_DEVICE bool operator()(u32 i) const { return column(i) < cols; }
};

// The sum over the row, for all threads of the cluster. parts[i]: that of the thread's vec8 i, 0 past the end of the
// row.
INGOT_DEVICE float norm_wide_sum(const float (&parts)[NormRowsWideLaunch::kVec8s], u32 steps,
                                 NormRowsWideShared& shared, u32 (&sums)[NormRowsWideLaunch::kSummingWarps]) {
  const NormRowsWideUnits units;
  const u32 lane = threadIdx.x % 32;
  const u32 warp = threadIdx.x / 32;
  INGOT_UNROLL
  for (u32 i = 0; i < NormRowsWideLaunch::kVec8s; ++i) shared.parts[(units.first() + i) * 32 + lane] = parts[i];
  __syncthreads();
  if (warp < units.warps()) {
    float sum = 0.0F;
    INGOT_UNROLL_BY(4)
    for (u32 step = 0; step < steps; ++step) sum = sum + shared.parts[(step * units.warps() + warp) * 32 + lane];
    sum = warp_sum(sum);
    if (lane < units.place.blocks) {
      send_word(sums, units.place.rank * units.warps() + warp, lane, float_bits(sum));
    }
  }
  cluster_barrier();
  float total = float_from_bits(sums[0]);
  INGOT_UNROLL
  for (u32 w = 1; w < NormRowsWideLaunch::kSummingWarps; ++w) total = total + float_from_bits(sums[w]);
  return total;
}

// The norm of the cluster's row.
template <class In, class Kind, class Codes, NormRowsConfig C>
INGOT_DEVICE void norm_row_of_cluster(const NormRowsParams& p) {
  using Row = NormRow<In, Kind, Codes, C>;
  auto& shared = dynamic_shared_as<NormRowsWideShared>();
  if constexpr (C.given_scale) {
    if (blockIdx.x == 0 && threadIdx.x == 0) *p.factors = factor_from_scale(*p.scale);
  }
  const u32 steps = NormRowsWideLaunch::steps(p.cols);
  const u32 cols = static_cast<u32>(p.cols);
  const ClusterPlace place = ClusterPlace::here();
  Row r{p, place.index, place.thread(), place.threads()};
  Vec8<In> vec8s[Row::kVec8s] = {};
  {
    const NormRowsWideColumns column;
    norm_load_row(r, vec8s, column, NormRowsWideInside{column, cols});
  }
  float parts[Row::kVec8s];
  if constexpr (Row::kSubtractsMean) {
    INGOT_UNROLL
    for (u32 i = 0; i < Row::kVec8s; ++i) {
      float x[kVec8];
      unpack(vec8s[i], x);
      parts[i] = vec8_sum(x);
    }
    cluster_started();
    r.take_sum(norm_wide_sum(parts, steps, shared, shared.sums[0]));
    forget_values(vec8s);
  }
  {
    const NormRowsWideColumns column;
    INGOT_UNROLL
    for (u32 i = 0; i < Row::kVec8s; ++i) {
      float x[kVec8];
      unpack(vec8s[i], x);
      const float sum = r.sum_of_squares(x, kVec8);
      parts[i] = column(i) < cols ? sum : 0.0F;
    }
  }
  if constexpr (!Row::kSubtractsMean) cluster_started();
  const float squares = norm_wide_sum(parts, steps, shared, shared.sums[1]);
  forget_values(vec8s);
  r.take_squares(squares);
  if constexpr (Row::kWritesValues) {
    const NormRowsWideColumns column;
    const u32 maximum = norm_kept_values(r, vec8s, column, NormRowsWideInside{column, cols});
    if constexpr (Row::kWritesCodes) {
      r.take_maximum(cluster_max(maximum, shared.maxima));
      const NormRowsWideColumns column_of_codes;
      norm_kept_codes(r, vec8s, column_of_codes, NormRowsWideInside{column_of_codes, cols});
    }
  }
}

// Params as for norm_rows; threads_log2 is not read. Cluster i of the grid takes row i.
template <class In, class Kind, class Codes, NormRowsConfig C>
INGOT_KERNEL void INGOT_LAUNCH_BOUNDS(NormRowsWideLaunch::kMaxThreads, sizeof(In) == 2 ? 4 : 2)
    norm_rows_wide(const __grid_constant__ NormRowsParams p) {
  if constexpr (kHasClusters) {
    cluster_start();
    start_in_turn();
    norm_row_of_cluster<In, Kind, Codes, C>(p);
  }
}

}  // namespace ingot
