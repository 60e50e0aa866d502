// LayerNorm or RMSNorm (norm_rows.cuh) of rows that are too wide for the registers of one block: the blocks of a
// cluster share a row, so each input byte is read once here too. It takes only rows that can be read and written 8
// elements at a time.
//
// A cluster takes many rows, one after the other. Each thread copies its part of the next row to shared memory while
// this one is reduced, and keeps the gamma and beta of its columns there: what it copies, only the thread itself reads.
//
// The bits are those of norm_rows, whose order of 512 threads stays: a thread has all groups of columns of one of these
// threads, or half of them.
#pragma once

#include "cluster.cuh"
#include "memory.cuh"
#include "norm/norm.cuh"
#include "norm/norm_row.cuh"
#include "norm/norm_wide.cuh"
#include "numerics.cuh"
#include "platform.cuh"
#include "reduce.cuh"
#include "scaling.cuh"
#include "shared.cuh"
#include "vec8.cuh"

namespace ingot {

// A block has four warps, each thread up to 8 groups of 8 columns. In a cluster of four blocks (up to 32768 columns) a
// thread has all groups of one summing thread, of the 512 that norm.cuh tells of. In a cluster of eight (up to 65536),
// half of the warps have the first groups and half the others.
struct NormRowsWideLaunch {
  static constexpr u32 kThreads = 128;
  static constexpr u32 kWarps = kThreads / 32;
  static constexpr u32 kSummingWarps = kNormSummingWarps;
  static constexpr u32 kVec8s = 8;
  static constexpr i64 kColsPerStep = i64{kSummingWarps} * 32 * kVec8;
  static constexpr i64 kMinCols = NormRowsLaunch::kMaxCols + 1;
  static constexpr i64 kMaxCols = i64{kMaxClusterBlocks} * kThreads * kVec8s * kVec8;
  // The groups of 8 columns of a summing thread.
  INGOT_HOST_DEVICE static constexpr u32 steps(u32 cols) { return ceil_div(cols, static_cast<u32>(kColsPerStep)); }
  INGOT_HOST_DEVICE static constexpr u32 blocks(i64 cols) { return cols <= kVec8s * kColsPerStep ? 4 : 8; }
  // Those of a thread, at most.
  INGOT_HOST_DEVICE static constexpr u32 vec8s(i64 cols) {
    const u32 all = steps(static_cast<u32>(cols));
    return all <= kVec8s ? all : ceil_div(all, 2U);
  }
  static constexpr u32 kMinVec8s = 5;  // vec8s(), at least
};
static_assert(NormRowsWideLaunch::vec8s(NormRowsWideLaunch::kMinCols) == NormRowsWideLaunch::kMinVec8s);
static_assert(NormRowsWideLaunch::vec8s(8 * NormRowsWideLaunch::kColsPerStep + 1) == NormRowsWideLaunch::kMinVec8s);
static_assert(NormRowsWideLaunch::kMaxCols == 16 * NormRowsWideLaunch::kColsPerStep);

struct NormRowsWideShared {
  ClusterWords<NormRowsWideLaunch::kSummingWarps> sums[2];  // of the summing warps, as bits
  ClusterWords<kMaxClusterBlocks * NormRowsWideLaunch::kWarps> maxima;
  float first_halves[2][NormRowsWideLaunch::kThreads / 2];  // in a cluster of eight: of the threads' sums
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
  INGOT_HOST_DEVICE static constexpr u32 launch_bytes(i64 cols, u32 rows, u32 element_bytes) {
    return static_cast<u32>(sizeof(NormRowsWideShared)) +
           NormRowsWideLaunch::vec8s(cols) * rows * NormRowsWideLaunch::kThreads * kVec8 * element_bytes;
  }
};
static_assert(sizeof(NormRowsWideShared) % 16 == 0);

// The slots of a thread for its vec8s of the input's row (kRow 0), gamma (1) or beta (2), of kRows. The block's slots
// for one vector are neighbours, and there are none behind those of the last vec8 that a thread has.
template <class In, u32 kRows, u32 kRow>
struct NormRowsWideSlot {
  static_assert(kRow < kRows);
  static constexpr u32 kVectors = Vec8<In>::kVectors;

  INGOT_DEVICE static u32 address(u32 i, u32 vector) {
    return shared_memory() + static_cast<u32>(sizeof(NormRowsWideShared)) + threadIdx.x * 16 +
           ((i * kRows + kRow) * kVectors + vector) * (NormRowsWideLaunch::kThreads * 16);
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

// Where the thread is among those that share the row. Warps of one block are spread over the row: the last group of
// columns may be there for some of them only.
struct NormRowsWidePlace {
  u32 blocks;        // of the cluster
  u32 second;        // has the thread the second half of a summing thread's groups?
  u32 summing_warp;  // whose groups it has

  INGOT_DEVICE static NormRowsWidePlace here() {
    const ClusterPlace cluster = ClusterPlace::here();
    const u32 warp = threadIdx.x / 32;
    const bool halves = cluster.blocks == kMaxClusterBlocks;
    return {cluster.blocks, halves ? warp / 2 : 0, (halves ? warp % 2 : warp) * cluster.blocks + cluster.rank};
  }
  INGOT_DEVICE bool sends() const { return blocks != kMaxClusterBlocks || second != 0; }
};

// The columns of the thread's vec8s.
struct NormRowsWideColumns {
  u32 begin, end;

  INGOT_DEVICE explicit NormRowsWideColumns(const NormRowsParams& p) {
    using Launch = NormRowsWideLaunch;
    constexpr u32 kStep = static_cast<u32>(Launch::kColsPerStep);
    const NormRowsWidePlace place = NormRowsWidePlace::here();
    const u32 cols = static_cast<u32>(p.cols);
    // A first half ends where the second begins, which has one group more if their number is odd.
    const u32 half = Launch::steps(cols) / 2 * kStep;
    begin = place.second * half + (place.summing_warp * 32 + threadIdx.x % 32) * kVec8;
    end = place.sends() ? cols : half;
  }
  // The first column of vec8 i. In 64 bits, two of them differ by a constant that takes no instruction.
  INGOT_DEVICE i64 operator()(u32 i) const { return i64{begin} + i64{i} * NormRowsWideLaunch::kColsPerStep; }
  // Only the last one that a thread may have can lie past the end.
  INGOT_DEVICE bool inside(u32 i) const {
    return i + 1 < NormRowsWideLaunch::kMinVec8s ||
           begin + i * static_cast<u32>(NormRowsWideLaunch::kColsPerStep) < end;
  }
};

// body(i) for each vec8 that a thread of the cluster may have. Those that are always there need no branch.
template <class Body>
INGOT_DEVICE void for_each_vec8(const NormRowsParams& p, const Body& body) {
  using Launch = NormRowsWideLaunch;
  const u32 vec8s = Launch::vec8s(p.cols);
  INGOT_UNROLL
  for (u32 i = 0; i < Launch::kVec8s; ++i) {
    if (i < Launch::kMinVec8s || i < vec8s) body(i);
  }
}

// The sum over the row, for all threads of the cluster. parts[i]: that of the thread's vec8 i, 0 past the end of the
// row. shared.sums serve in turn: this is the turn-th time of number `which`.
INGOT_DEVICE float norm_cluster_sum(const float (&parts)[NormRowsWideLaunch::kVec8s], NormRowsWideShared& shared,
                                    u32 which, u32 turn) {
  using Launch = NormRowsWideLaunch;
  const NormRowsWidePlace place = NormRowsWidePlace::here();
  float sum = 0.0F;
  const auto add = [&] {
    INGOT_UNROLL
    for (const float part : parts) sum = sum + part;
  };
  if (place.blocks == kMaxClusterBlocks) {
    float& first_half = shared.first_halves[which][threadIdx.x % (Launch::kThreads / 2)];
    if (place.second == 0) {
      add();
      first_half = sum;
    }
    __syncthreads();
    if (place.second != 0) sum = first_half;
  }
  if (place.sends()) {
    add();
    sum = warp_sum(sum);
    const u32 lane = threadIdx.x % 32;
    if (lane < place.blocks) shared.sums[which].send(place.summing_warp, lane, float_bits(sum));
  }
  shared.sums[which].wait(Launch::kSummingWarps, turn);
  return norm_sum_of_warps(shared.sums[which].words);
}

template <class In, class Kind, class Codes, NormRowsConfig C>
struct NormRowsWide {
  using Row = NormRow<In, Kind, Codes, C>;
  using Columns = NormRowsWideColumns;
  static constexpr u32 kVec8s = NormRowsWideLaunch::kVec8s;
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
    for_each_vec8(p, [&](u32 i) {
      if (!column.inside(i)) {
        Slot<0>::clear(i);
        if constexpr (kSlotRows > 1) Slot<1>::clear(i);
        if constexpr (kSlotRows > 2) Slot<2>::clear(i);
        return;
      }
      if constexpr (kSlotRows > 1) Slot<1>::copy(i, static_cast<const In*>(p.gamma) + column(i));
      if constexpr (kSlotRows > 2) Slot<2>::copy(i, static_cast<const In*>(p.beta) + column(i));
    });
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
    for_each_vec8(p, [&](u32 i) {
      forget_values(vec8s[i]);
      float x[kVec8];
      unpack(vec8s[i], x);
      vec8s[i] = r.values(x, affine(r, i, column));
      if (!column.inside(i)) return;
      if constexpr (Row::kWritesCodes) maximum.take(vec8s[i]);
      if constexpr (Row::kWritesResult) store_vec8(r.result() + column(i), vec8s[i]);
    });
    return maximum.bits();
  }

  INGOT_DEVICE void store_codes(const Row& r, const Vec8<In> (&vec8s)[kVec8s]) const {
    const Columns column(p);
    for_each_vec8(p, [&](u32 i) {
      const U32x2 codes = r.quantized(vec8s[i]);
      if (column.inside(i)) store_streaming(r.codes() + column(i), codes);
    });
  }

  using Parts = float[kVec8s];

  INGOT_DEVICE void take_sums(const Vec8<In> (&vec8s)[kVec8s], Parts& parts) const {
    for_each_vec8(p, [&](u32 i) {
      float x[kVec8];
      unpack(vec8s[i], x);
      parts[i] = vec8_sum(x);
    });
  }

  INGOT_DEVICE void take_squares(const Row& r, Vec8<In> (&vec8s)[kVec8s], Parts& parts) const {
    const Columns column(p);
    for_each_vec8(p, [&](u32 i) {
      if constexpr (Row::kSubtractsMean) forget_values(vec8s[i]);
      float x[kVec8];
      unpack(vec8s[i], x);
      const float sum = r.sum_of_squares(x, kVec8);
      parts[i] = column.inside(i) ? sum : 0.0F;
    });
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
      row += cluster_count();
      const auto copy_next = [&] {
        if (row < static_cast<u32>(p.rows)) copy_row(row);
        commit_copies();
      };
      wait_for_copies<0>();
      Vec8<In> vec8s[kVec8s];
      for_each_vec8(p, [&](u32 i) { vec8s[i] = Slot<0>::load(i); });
      Parts parts = {};
      if constexpr (Row::kSubtractsMean) {
        take_sums(vec8s, parts);
        copy_next();
        r.take_sum(norm_cluster_sum(parts, shared, 0, turn));
      }
      take_squares(r, vec8s, parts);
      if constexpr (!Row::kSubtractsMean) copy_next();
      r.take_squares(kOneReduction ? norm_cluster_sum(parts, shared, turn % 2, turn / 2)
                                   : norm_cluster_sum(parts, shared, 1, turn));
      if constexpr (Row::kWritesValues) {
        const u32 maximum = take_values(r, vec8s);
        if constexpr (Row::kWritesCodes) {
          r.take_maximum(cluster_max(maximum, shared.maxima, turn));
          store_codes(r, vec8s);
        }
      }
    }
  }
};

// How many blocks a multiprocessor has registers for.
template <class In>
inline constexpr u32 kNormRowsWideBlocks = sizeof(In) == 4       ? 3
                                           : kDeviceArch >= 1200 ? 4
                                                                 : 5;

// Params as for norm_rows; threads_log2 is not read. Cluster i of n takes every n-th row, beginning with row i; there
// is one for each.
template <class In, class Kind, class Codes, NormRowsConfig C>
INGOT_KERNEL void INGOT_LAUNCH_BOUNDS(NormRowsWideLaunch::kThreads, kNormRowsWideBlocks<In>)
    norm_rows_wide(const __grid_constant__ NormRowsParams p) {
  if constexpr (kHasClusters) {
    auto& shared = dynamic_shared_as<NormRowsWideShared>();
    cluster_start_with(shared.sums[0], shared.sums[1], shared.maxima);
    start_in_turn();
    if constexpr (C.given_scale) {
      if (blockIdx.x == 0 && threadIdx.x == 0) *p.factors = factor_from_scale(*p.scale);
    }
    NormRowsWide<In, Kind, Codes, C>{p, shared}.all_rows();
  }
}

}  // namespace ingot
