// LayerNorm or RMSNorm (norm_rows.cuh) of rows that are too wide for the registers of one block: the blocks of a
// cluster share a row, so each input byte is read once here too. It takes only rows that can be read and written 8
// elements at a time.
//
// A cluster takes many rows, one after the other. Each thread copies its part of the next row to shared memory while
// this one is reduced, and keeps the gamma and beta of its columns there: what it copies, only the thread itself reads.
//
// The bits are those of norm_rows, whose order of 512 threads norm_wide.cuh keeps. Each warp holds four units.
#pragma once

#include "cluster.cuh"
#include "memory.cuh"
#include "norm/norm.cuh"
#include "norm/norm_rows.cuh"
#include "norm/norm_wide.cuh"
#include "numerics.cuh"
#include "platform.cuh"
#include "reduce.cuh"
#include "scaling.cuh"
#include "shared.cuh"
#include "vec8.cuh"

namespace ingot {

// Four blocks for up to 8 groups of columns per summing thread (32768 columns), eight for up to 16.
struct NormRowsWideLaunch {
  static constexpr u32 kSummingWarps = kNormSummingWarps;
  static constexpr u32 kMaxThreads = 256;
  static constexpr u32 kVec8s = NormRowsLaunch::kVec8s;
  static constexpr i64 kColsPerStep = i64{kSummingWarps} * 32 * kVec8;
  static constexpr i64 kMinCols = NormRowsLaunch::kMaxCols + 1;
  static constexpr i64 kMaxCols = kMaxClusterBlocks * kMaxThreads * kVec8s * kVec8;
  // The groups of 8 columns of a summing thread.
  INGOT_HOST_DEVICE static constexpr u32 steps(u32 cols) { return ceil_div(cols, static_cast<u32>(kColsPerStep)); }
  INGOT_HOST_DEVICE static constexpr u32 steps(i64 cols) { return steps(static_cast<u32>(cols)); }
  INGOT_HOST_DEVICE static constexpr u32 blocks(i64 cols) { return steps(cols) <= 8 ? 4 : kMaxClusterBlocks; }
  INGOT_HOST_DEVICE static constexpr u32 threads(i64 cols) {  // in each block
    return ceil_div(steps(cols) * (kSummingWarps / blocks(cols)), kVec8s) * 32;
  }
};

static_assert(NormRowsWideLaunch::kMaxThreads / 32 * NormRowsWideLaunch::kVec8s == kMaxNormUnits);

struct NormRowsWideShared {
  NormWideShared<1> sums;
  ClusterWords<kMaxClusterWarps> maxima;
};

// Behind NormRowsWideShared, each thread has slots for its vec8s of one row and, if the norm has them and there is room
// for them, of gamma and beta.
struct NormRowsWideSlots {
  // A multiprocessor of compute capability 12 has not half the shared memory of the others: there, gamma and beta are
  // loaded again for each row, from the L1.
  INGOT_HOST_DEVICE static constexpr bool keep_affine(int major) { return major < 12; }
  // The vectors of a thread's slots: the row, gamma, beta.
  INGOT_HOST_DEVICE static constexpr u32 rows(bool affine, bool centred, int major) {
    return 1 + (affine && keep_affine(major) ? (centred ? 2 : 1) : 0);
  }
  // The dynamic shared memory of a block.
  INGOT_HOST_DEVICE static constexpr u32 launch_bytes(u32 threads, u32 rows, u32 element_bytes) {
    return static_cast<u32>(sizeof(NormRowsWideShared)) +
           threads * rows * NormRowsWideLaunch::kVec8s * kVec8 * element_bytes;
  }
};
static_assert(sizeof(NormRowsWideShared) % 16 == 0);

// The slots of a thread for its vec8s of the input's row (kRow 0), gamma (1) or beta (2), of kRows. The 32 slots of a
// warp for one vector are neighbours.
template <class In, u32 kRows, u32 kRow>
struct NormRowsWideSlot {
  static_assert(kRow < kRows);
  static constexpr u32 kVectors = Vec8<In>::kVectors;

  INGOT_DEVICE static u32 address(u32 i, u32 vector) {
    constexpr u32 kPerRow = NormRowsWideLaunch::kVec8s * kVectors;
    return shared_memory() + static_cast<u32>(sizeof(NormRowsWideShared)) +
           (threadIdx.x / 32 * kRows * kPerRow * 32 + threadIdx.x % 32) * 16 +
           (kRow * kPerRow + i * kVectors + vector) * (32 * 16);
  }
  INGOT_DEVICE static void clear(u32 i) {
    INGOT_UNROLL
    for (u32 v = 0; v < kVectors; ++v) store_shared16(address(i, v), {});
  }
  INGOT_DEVICE static void copy(u32 i, const In* source) {
    INGOT_UNROLL
    for (u32 v = 0; v < kVectors; ++v) {
      if constexpr (kVectors == 1) {
        copy_async<16>(address(i, v), source, 16);
      } else {
        copy_async_cached(address(i, v), source + v * kPerVector<In>, 16);
      }
    }
  }
  INGOT_DEVICE static Vec8<In> load(u32 i) {
    Vec8<In> vec8;
    INGOT_UNROLL
    for (u32 v = 0; v < kVectors; ++v) vec8.vectors[v].bits = load_shared16(address(i, v));
    return vec8;
  }
};

// The columns of the thread's vec8s: two or four warps are one behind the other.
struct NormRowsWideColumns {
  u32 begin, stride, cols;

  INGOT_DEVICE explicit NormRowsWideColumns(const NormRowsParams& p) : cols(static_cast<u32>(p.cols)) {
    constexpr u32 kStep = static_cast<u32>(NormRowsWideLaunch::kColsPerStep);
    const ClusterPlace place = ClusterPlace::here();
    const u32 warp = place.rank * norm_summing_warps(place.blocks);
    const u32 step = threadIdx.x / 32 * (place.blocks == kMaxClusterBlocks ? 2 : 1);
    begin = step * kStep + (warp * 32 + threadIdx.x % 32) * kVec8;
    stride = place.blocks == kMaxClusterBlocks ? kStep : 2 * 32 * kVec8;
  }
  // The first column of vec8 i. In 64 bits, two of them differ by a constant that takes no instruction.
  INGOT_DEVICE i64 operator()(u32 i) const { return i64{begin} + i64{i / 2 * stride} + i64{i % 2 * (32 * kVec8)}; }
  INGOT_DEVICE bool inside(u32 i) const { return begin + i / 2 * stride + i % 2 * (32 * kVec8) < cols; }
};
static_assert(NormRowsWideLaunch::kVec8s == 4 && NormRowsWideLaunch::kSummingWarps == 16 && kMaxClusterBlocks == 8);

// The sum over the row, for all threads of the cluster. parts[i]: that of the thread's vec8 i, 0 past the end of the
// row. A block sums for neighbouring warps.
INGOT_DEVICE float norm_wide_sum(const float (&parts)[NormRowsWideLaunch::kVec8s][1], const NormRowsParams& p,
                                 NormWideShared<1>& shared, u32 which, u32 turn) {
  const ClusterPlace place = ClusterPlace::here();
  const u32 warps = norm_summing_warps(place.blocks);
  float total[1];
  norm_wide_sums(
      parts, total, threadIdx.x / 32 * NormRowsWideLaunch::kVec8s,
      NormRowsWideLaunch::steps(static_cast<u32>(p.cols)) * warps, [&](u32 w) { return place.rank * warps + w; },
      shared, shared.sums[which], turn);
  return total[0];
}

template <class In, class Kind, class Codes, NormRowsConfig C>
struct NormRowsWide {
  using Row = NormRow<In, Kind, Codes, C>;
  using Columns = NormRowsWideColumns;
  static constexpr u32 kVec8s = Row::kVec8s;
  static constexpr u32 kSlotRows = NormRowsWideSlots::rows(C.affine, kCentred<Kind>, kDeviceArch / 100);
  template <u32 kRow>
  using Slot = NormRowsWideSlot<In, kSlotRows, kRow>;
  // A row that is reduced only once takes the ClusterWords in turn.
  static constexpr bool kOneReduction = !Row::kSubtractsMean && !Row::kWritesCodes;

  const NormRowsParams& p;
  NormRowsWideShared& shared;

  // Begins to copy the thread's part of a row.
  INGOT_DEVICE void copy_row(u32 row) const {
    const Columns column(p);
    const In* const input = static_cast<const In*>(p.input) + row * p.input_stride;
    INGOT_UNROLL
    for (u32 i = 0; i < kVec8s; ++i) {
      if (column.inside(i)) Slot<0>::copy(i, input + column(i));
    }
  }

  // Before the first row: gamma and beta, and zeros past the end of the row, which add nothing to its sums.
  INGOT_DEVICE void fill_slots() const {
    const Columns column(p);
    INGOT_UNROLL
    for (u32 i = 0; i < kVec8s; ++i) {
      if (!column.inside(i)) {
        Slot<0>::clear(i);
        if constexpr (kSlotRows > 1) Slot<1>::clear(i);
        if constexpr (kSlotRows > 2) Slot<2>::clear(i);
        continue;
      }
      if constexpr (kSlotRows > 1) Slot<1>::copy(i, static_cast<const In*>(p.gamma) + column(i));
      if constexpr (kSlotRows > 2) Slot<2>::copy(i, static_cast<const In*>(p.beta) + column(i));
    }
  }

  INGOT_DEVICE typename Row::AffineVec8 affine(const Row& r, u32 i, const Columns& column) const {
    typename Row::AffineVec8 vec8;
    if constexpr (kSlotRows > 1) {
      vec8.gamma = Slot<1>::load(i);
      if constexpr (kSlotRows > 2) vec8.beta = Slot<2>::load(i);
    } else {
      if (column.inside(i)) vec8 = r.affine([&](const In* vector) { return load_vec8_again(vector + column(i)); });
    }
    return vec8;
  }

  // norm_kept_values() for these columns; what lies past the end of the row becomes anything.
  INGOT_DEVICE u32 take_values(const Row& r, Vec8<In> (&vec8s)[kVec8s]) const {
    const Columns column(p);
    Vec8sMaximum<In> maximum;
    INGOT_UNROLL
    for (u32 i = 0; i < kVec8s; ++i) {
      float x[kVec8];
      unpack(vec8s[i], x);
      vec8s[i] = r.values(x, affine(r, i, column));
      if (!column.inside(i)) continue;
      if constexpr (Row::kWritesCodes) maximum.take(vec8s[i]);
      if constexpr (Row::kWritesResult) store_vec8(r.result() + column(i), vec8s[i]);
    }
    return maximum.bits();
  }

  INGOT_DEVICE void store_codes(const Row& r, const Vec8<In> (&vec8s)[kVec8s]) const {
    const Columns column(p);
    INGOT_UNROLL
    for (u32 i = 0; i < kVec8s; ++i) {
      const U32x2 codes = r.quantized(vec8s[i]);
      if (column.inside(i)) store_streaming(r.codes() + column(i), codes);
    }
  }

  // `turn` counts the cluster's rows.
  INGOT_DEVICE void take_mean(Row& r, u32 turn) const {
    float parts[kVec8s][1];
    INGOT_UNROLL
    for (u32 i = 0; i < kVec8s; ++i) {
      float x[kVec8];
      unpack(Slot<0>::load(i), x);
      parts[i][0] = vec8_sum(x);
    }
    r.take_sum(norm_wide_sum(parts, p, shared.sums, 0, turn));
  }

  INGOT_DEVICE void take_squares(Row& r, const Vec8<In> (&vec8s)[kVec8s], u32 turn) const {
    const Columns column(p);
    float parts[kVec8s][1];
    INGOT_UNROLL
    for (u32 i = 0; i < kVec8s; ++i) {
      float x[kVec8];
      unpack(vec8s[i], x);
      const float sum = r.sum_of_squares(x, kVec8);
      parts[i][0] = column.inside(i) ? sum : 0.0F;
    }
    r.take_squares(kOneReduction ? norm_wide_sum(parts, p, shared.sums, turn % 2, turn / 2)
                                 : norm_wide_sum(parts, p, shared.sums, 1, turn));
  }

  // The cluster's rows. A thread's elements leave their slots when they have been summed up: then the next row's come.
  // What a thread knows about its columns it finds out again after each wait, which costs less than registers for it.
  INGOT_DEVICE void all_rows() const {
    u32 row = ClusterPlace::here().index;
    fill_slots();
    copy_row(row);
    commit_copies();
    cluster_started();
    INGOT_UNROLL_BY(1)
    for (u32 turn = 0; row < static_cast<u32>(p.rows); ++turn) {
      const ClusterPlace place = ClusterPlace::here();
      Row r{p, row, place.thread(), place.threads()};
      wait_for_copies<0>();
      if constexpr (Row::kSubtractsMean) take_mean(r, turn);
      Vec8<In> vec8s[kVec8s];
      INGOT_UNROLL
      for (u32 i = 0; i < kVec8s; ++i) vec8s[i] = Slot<0>::load(i);
      row += cluster_count();
      if (row < static_cast<u32>(p.rows)) copy_row(row);
      commit_copies();
      take_squares(r, vec8s, turn);
      if constexpr (Row::kWritesValues) {
        forget_values(vec8s);
        const u32 maximum = take_values(r, vec8s);
        if constexpr (Row::kWritesCodes) {
          r.take_maximum(cluster_max(maximum, shared.maxima, turn));
          store_codes(r, vec8s);
        }
      }
    }
  }
};

// How many blocks of the most threads a multiprocessor has room for. Compute capability 12 has less shared memory.
template <class In>
inline constexpr u32 kNormRowsWideBlocks = sizeof(In) == 4       ? 2
                                           : kDeviceArch >= 1200 ? 3
                                                                 : 4;

// Params as for norm_rows; threads_log2 is not read. Cluster i of n takes every n-th row, beginning with row i; there
// is one for each.
template <class In, class Kind, class Codes, NormRowsConfig C>
INGOT_KERNEL void INGOT_LAUNCH_BOUNDS(NormRowsWideLaunch::kMaxThreads, kNormRowsWideBlocks<In>)
    norm_rows_wide(const __grid_constant__ NormRowsParams p) {
  if constexpr (kHasClusters) {
    auto& shared = dynamic_shared_as<NormRowsWideShared>();
    cluster_start_with(shared.sums.sums[0], shared.sums.sums[1], shared.maxima);
    start_in_turn();
    if constexpr (C.given_scale) {
      if (blockIdx.x == 0 && threadIdx.x == 0) *p.factors = factor_from_scale(*p.scale);
    }
    NormRowsWide<In, Kind, Codes, C>{p, shared}.all_rows();
  }
}

}  // namespace ingot
