// The codes alone of LayerNorm or RMSNorm (norm_rows.cuh) of 16-bit rows of 8193 to 16384 columns: a pair of blocks, a
// cluster of two, shares a row, so each input byte is read once here too. It takes only rows that can be read and
// written 8 elements at a time.
//
// A pair takes many rows, one after the other. Each thread copies its part of the next row to shared memory while this
// one is reduced, and keeps the gamma and beta of its columns there: what it copies, only the thread itself reads.
//
// The bits are those of norm_rows: each thread of the pair is one of its 512 and has the same groups of columns. How
// many these are is known when the kernel is compiled.
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

struct NormRowsWideLaunch {
  static constexpr u32 kBlocks = 2;  // of a cluster
  static constexpr u32 kThreads = 256;
  static constexpr u32 kWarps = kThreads / 32;
  static constexpr u32 kSummingWarps = kNormSummingWarps;
  static_assert(kBlocks * kWarps == kSummingWarps);
  static constexpr i64 kColsPerStep = i64{kSummingWarps} * 32 * kVec8;
  // The groups of 8 columns of a thread.
  static constexpr u32 kMinVec8s = 3;
  static constexpr u32 kMaxVec8s = 4;
  static constexpr i64 kMaxCols = kMaxVec8s * kColsPerStep;
  INGOT_HOST_DEVICE static constexpr u32 vec8s(i64 cols) { return static_cast<u32>(ceil_div(cols, kColsPerStep)); }
  // NormSpec::cols of the kernel for rows of `cols` columns.
  INGOT_HOST_DEVICE static constexpr i64 kernel_cols(i64 cols) { return vec8s(cols) * kColsPerStep; }
  // Is that the kernel for rows that can be read in vectors?
  INGOT_HOST_DEVICE static constexpr bool takes(i64 cols, i64 element_bytes, bool codes_alone) {
    return codes_alone && element_bytes == 2 && cols > (kMinVec8s - 1) * kColsPerStep && cols <= kMaxCols;
  }
};
static_assert(NormRowsWideLaunch::kMaxCols == NormRowsLaunch::kMaxCols);

struct NormRowsWideShared {
  ClusterWords<NormRowsWideLaunch::kSummingWarps> sums[2];  // of the summing warps, as bits
  ClusterWords<NormRowsWideLaunch::kSummingWarps> maxima;
};

// After NormRowsWideShared, each thread has slots for its vec8s of one row and, if the norm has them, of gamma and
// beta.
struct NormRowsWideSlots {
  // The vectors of a thread's slots: the row, gamma, beta. GPUs of compute capability 12 have little shared memory:
  // there gamma and beta are loaded again for each row, from the L1.
  INGOT_HOST_DEVICE static constexpr u32 rows(bool affine, bool centred, int major) {
    return major < 12 && affine ? (centred ? 3 : 2) : 1;
  }
  // The dynamic shared memory of a block with this many vec8s and rows.
  INGOT_HOST_DEVICE static constexpr u32 bytes(u32 vec8s, u32 rows) {
    return static_cast<u32>(sizeof(NormRowsWideShared)) + vec8s * rows * NormRowsWideLaunch::kThreads * 16;
  }
};
static_assert(sizeof(NormRowsWideShared) % 16 == 0);

// The slots of a thread for its vec8s of the input's row (kRow 0), gamma (1) or beta (2), of kRows. The block's slots
// for one vector are neighbours, and there are none after those of the last vec8 that a thread has.
template <class In, u32 kRows, u32 kRow>
struct NormRowsWideSlot {
  static_assert(kRow < kRows && sizeof(In) == 2);

  INGOT_DEVICE static u32 address(u32 i) {
    return shared_memory() + static_cast<u32>(sizeof(NormRowsWideShared)) + threadIdx.x * 16 +
           (i * kRows + kRow) * (NormRowsWideLaunch::kThreads * 16);
  }
  INGOT_DEVICE static void clear(u32 i) { store_shared16(address(i), {}); }
  INGOT_DEVICE static void copy(u32 i, const In* source) { copy_async<16>(address(i), source, 16); }
  INGOT_DEVICE static Vec8<In> load(u32 i) { return {{{load_shared16(address(i))}}}; }
};

// Which of the 16 summing warps the thread's warp is: the two blocks of a pair alternate, so that the last group of
// columns may be there for some of a block's warps only.
INGOT_DEVICE u32 norm_summing_warp() {
  return threadIdx.x / 32 * NormRowsWideLaunch::kBlocks + ClusterPlace::here().rank;
}

// The columns of the thread's Vec8s vec8s.
template <u32 Vec8s>
struct NormRowsWideColumns {
  u32 begin, end;

  INGOT_DEVICE explicit NormRowsWideColumns(const NormRowsParams& p)
      : begin((norm_summing_warp() * 32 + threadIdx.x % 32) * kVec8), end(static_cast<u32>(p.cols)) {}
  // The first column of vec8 i. In 64 bits, two of them differ by a constant that takes no instruction.
  INGOT_DEVICE i64 operator()(u32 i) const { return i64{begin} + i64{i} * NormRowsWideLaunch::kColsPerStep; }
  // Only the last one can be past the end.
  INGOT_DEVICE bool inside(u32 i) const {
    return i + 1 < Vec8s || begin + i * static_cast<u32>(NormRowsWideLaunch::kColsPerStep) < end;
  }
};

// How many blocks a multiprocessor has registers for, or shared memory.
INGOT_HOST_DEVICE constexpr u32 norm_rows_wide_blocks(u32 vec8s) {
  return kDeviceArch >= 1200 ? 2 : vec8s <= 3 ? 4 : 3;
}
// How many vec8s go side by side without a spill.
INGOT_HOST_DEVICE constexpr u32 norm_rows_wide_batch(u32 vec8s) { return kDeviceArch >= 1200 ? 2 : vec8s; }

// body(i) for each of the thread's Vec8s vec8s, from First on. They go side by side, Batch of them at a time: a branch
// that is always taken keeps the compiler from beginning with those for which it has no registers.
template <u32 Vec8s, u32 Batch, u32 First = 0, class Body>
INGOT_DEVICE void for_each_vec8(const NormRowsParams& p, const Body& body) {
  constexpr u32 kEnd = min_of(First + Batch, Vec8s);
  INGOT_UNROLL
  for (u32 i = First; i < kEnd; ++i) body(i);
  if constexpr (kEnd < Vec8s) {
    if (p.rows != 0) for_each_vec8<Vec8s, Batch, kEnd>(p, body);
  }
}

// The sum over the row, for all threads of the pair. parts[i]: that of the thread's vec8 i, 0 past the end of the row.
// The `words` alternate: this is the turn-th use.
template <u32 Vec8s>
INGOT_DEVICE float norm_pair_sum(const float (&parts)[Vec8s], ClusterWords<NormRowsWideLaunch::kSummingWarps>& words,
                                 u32 turn) {
  float sum = 0.0F;
  INGOT_UNROLL
  for (const float part : parts) sum = sum + part;
  sum = warp_sum(sum);
  const u32 lane = threadIdx.x % 32;
  if (lane < NormRowsWideLaunch::kBlocks) words.send(norm_summing_warp(), lane, float_bits(sum));
  words.wait(NormRowsWideLaunch::kSummingWarps, turn);
  return norm_sum_of_warps(words.words);
}

template <class In, class Kind, class Codes, NormRowsConfig C, u32 kVec8s>
struct NormRowsWide {
  using Row = NormRow<In, Kind, Codes, C>;
  using Columns = NormRowsWideColumns<kVec8s>;
  static_assert(Row::kCodesAlone);
  static constexpr u32 kSlotRows = NormRowsWideSlots::rows(C.affine, kCentred<Kind>, kDeviceArch / 100);
  template <u32 kRow>
  using Slot = NormRowsWideSlot<In, kSlotRows, kRow>;

  const NormRowsParams& p;
  NormRowsWideShared& shared;

  template <class Body>
  INGOT_DEVICE void each_vec8(const Body& body) const {
    for_each_vec8<kVec8s, norm_rows_wide_batch(kVec8s)>(p, body);
  }

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
    each_vec8([&](u32 i) {
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

  // As NormRows' take_values(), for these columns; what is past the end of the row is undefined.
  INGOT_DEVICE u32 take_values(const Row& r, Vec8<In> (&vec8s)[kVec8s]) const {
    const Columns column(p);
    Vec8sMaximum<In> maximum;
    each_vec8([&](u32 i) {
      forget_values(vec8s[i]);
      float x[kVec8];
      unpack(vec8s[i], x);
      vec8s[i] = r.values(x, affine(r, i, column));
      if (!column.inside(i)) return;
      maximum.take(vec8s[i]);
    });
    return maximum.bits();
  }

  INGOT_DEVICE void store_codes(const Row& r, const Vec8<In> (&vec8s)[kVec8s]) const {
    const Columns column(p);
    each_vec8([&](u32 i) {
      const U32x2 codes = r.quantized(vec8s[i]);
      if (column.inside(i)) store_streaming(r.codes() + column(i), codes);
    });
  }

  using Parts = float[kVec8s];

  INGOT_DEVICE void take_sums(const Vec8<In> (&vec8s)[kVec8s], Parts& parts) const {
    each_vec8([&](u32 i) {
      float x[kVec8];
      unpack(vec8s[i], x);
      parts[i] = vec8_sum(x);
    });
  }

  INGOT_DEVICE void take_squares(const Row& r, Vec8<In> (&vec8s)[kVec8s], Parts& parts) const {
    const Columns column(p);
    each_vec8([&](u32 i) {
      if constexpr (Row::kSubtractsMean) forget_values(vec8s[i]);
      float x[kVec8];
      unpack(vec8s[i], x);
      const float sum = r.sum_of_squares(x, kVec8);
      parts[i] = column.inside(i) ? sum : 0.0F;
    });
  }

  // The pair's rows. A thread's elements leave their slots when they have been summed up: then the next row's come.
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
      each_vec8([&](u32 i) { vec8s[i] = Slot<0>::load(i); });
      Parts parts = {};
      if constexpr (Row::kSubtractsMean) {
        take_sums(vec8s, parts);
        copy_next();
        r.take_sum(norm_pair_sum(parts, shared.sums[0], turn));
      }
      take_squares(r, vec8s, parts);
      if constexpr (!Row::kSubtractsMean) copy_next();
      r.take_squares(norm_pair_sum(parts, shared.sums[1], turn));
      r.take_maximum(cluster_max(take_values(r, vec8s), shared.maxima, turn));
      store_codes(r, vec8s);
    }
  }
};

// Params as for norm_rows; threads_log2 and slot_rows are not read. It takes rows of as many columns as make kVec8s
// groups of 8 for a thread. Pair i of n takes every n-th row, beginning with row i; there is one for each.
template <class In, class Kind, class Codes, NormRowsConfig C, u32 kVec8s>
INGOT_KERNEL void INGOT_LAUNCH_BOUNDS(NormRowsWideLaunch::kThreads, norm_rows_wide_blocks(kVec8s))
    norm_rows_wide(const __grid_constant__ NormRowsParams p) {
  static_assert(kVec8s >= NormRowsWideLaunch::kMinVec8s && kVec8s <= NormRowsWideLaunch::kMaxVec8s);
  if constexpr (kHasClusters) {
    auto& shared = dynamic_shared_as<NormRowsWideShared>();
    cluster_start_with(shared.sums[0], shared.sums[1], shared.maxima);
    start_in_turn();
    if constexpr (C.given_scale) {
      if (blockIdx.x == 0 && threadIdx.x == 0) *p.factors = factor_from_scale(*p.scale);
    }
    NormRowsWide<In, Kind, Codes, C, kVec8s>{p, shared}.all_rows();
  }
}

}  // namespace ingot
