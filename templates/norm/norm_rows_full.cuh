// The codes alone, with scales of rows, of an affine LayerNorm or RMSNorm (norm_rows.cuh) of 16-bit rows of 1024, 2048,
// 4096 or 8192 columns: each thread that shares a row has exactly four vec8s of it, and no instruction asks for the
// row's end. It takes only rows that can be read and written 8 elements at a time.
//
// A block takes many rows. Each thread copies its part of the next one to shared memory while this one is reduced,
// keeps gamma and beta in registers from row to row, and unpacks each element only once: instructions bound these
// kernels, so 80 registers, with three quarters of the warps that 64 would leave room for, are faster
// (docs/notes/norms.md).
//
// The bits are those of norm_rows.
#pragma once

#include "memory.cuh"
#include "norm/norm.cuh"
#include "norm/norm_row.cuh"
#include "numerics.cuh"
#include "platform.cuh"
#include "reduce.cuh"
#include "scaling.cuh"
#include "shared.cuh"
#include "vec8.cuh"

namespace ingot {

struct NormRowsFullLaunch {
  static constexpr u32 kVec8s = NormRowsLaunch::kVec8s;
  static constexpr i64 kMaxThreads = 256;         // that share a row
  static constexpr i64 kThreadsAtOnce = 3 * 256;  // on a multiprocessor: they leave 80 registers for each
  static constexpr i64 kMaxCols = kMaxThreads * kVec8s * kVec8;
  // Does such a kernel take rows of `cols` columns that can be read in vectors? `codes`: are affine codes with dynamic
  // scales all that is written, but for statistics? NormSpec::cols of the kernel is then the number of columns.
  INGOT_HOST_DEVICE static constexpr bool takes(i64 cols, i64 element_bytes, bool codes) {
    return codes && element_bytes == 2 && cols <= kMaxCols &&
           cols == NormRowsLaunch::threads_per_row(cols) * i64{kVec8s * kVec8};
  }
  INGOT_HOST_DEVICE static constexpr u32 blocks_at_once(i64 cols) {
    return static_cast<u32>(kThreadsAtOnce / NormRowsLaunch::threads(cols));
  }
  INGOT_HOST_DEVICE static constexpr i64 grid(i64 rows, i64 cols, i64 multiprocessors) {
    return min_of(ceil_div(rows, NormRowsLaunch::rows_per_block(cols)), multiprocessors * blocks_at_once(cols));
  }
};

template <class In, class Kind, class Codes, NormRowsConfig C, i64 kCols>
struct NormRowsFull {
  using Row = NormRow<In, Kind, Codes, C>;
  static_assert(Row::kCodesAlone && C.affine && !C.given_scale && sizeof(In) == 2);
  static constexpr u32 kVec8s = Row::kVec8s;
  static constexpr u32 kThreads = NormRowsLaunch::threads_per_row(kCols);  // of a row
  static constexpr u32 kGroups = NormRowsLaunch::threads(kCols) / kThreads;
  static constexpr u32 kStep = kThreads * kVec8;  // columns from one vec8 of a thread to the next
  static constexpr u32 kSlotStep = kGroups * kThreads * 16;
  static_assert(kVec8s * kStep == kCols);

  const NormRowsParams& p;
  NormRowsShared& shared;

  // Rows from one of a group's to the next: both numbers are below 2^31 (rows are fewer than 2^30).
  INGOT_DEVICE static u32 step() { return gridDim.x * kGroups; }

  // The compiler keeps what is hidden instead of the words that it came from.
  INGOT_DEVICE static void keep(float (&elements)[kVec8s][kVec8]) {
    INGOT_UNROLL
    for (u32 i = 0; i < kVec8s; ++i) {
      INGOT_UNROLL
      for (float& element : elements[i]) hide(element);
    }
  }

  INGOT_DEVICE void run() const {
    const u32 lane = kGroups == 1 ? threadIdx.x : threadIdx.x % kThreads;
    const u32 group = kGroups == 1 ? 0 : threadIdx.x / kThreads;
    // The thread's slots, which only it reads and writes: they need no barrier.
    const u32 slots = shared_memory() + threadIdx.x * 16;
    const auto copy_row = [&](u32 row) {
      const Row r{p, row + group, lane, kThreads};
      if (r.active()) {
        const In* from = r.input() + lane * kVec8;
        hide(from);
        INGOT_UNROLL
        for (u32 i = 0; i < kVec8s; ++i) copy_async<16>(slots + i * kSlotStep, from + i * kStep, 16);
      }
      commit_copies();
    };
    u32 row = blockIdx.x * kGroups;
    copy_row(row);
    typename Row::AffineVec8 affine[kVec8s];
    INGOT_UNROLL
    for (u32 i = 0; i < kVec8s; ++i) {
      affine[i] = Row{p, row, lane, kThreads}.affine(
          [&](const In* vector) { return load_vec8_again(vector + lane * kVec8 + i * kStep); });
    }
    // The two warp_sums alternate, as in norm_rows.
    INGOT_UNROLL_BY(1)
    for (u32 turn = 0; row < p.rows; turn ^= 1U) {
      Vec8<In> vec8s[kVec8s];
      wait_for_copies<0>();
      INGOT_UNROLL
      for (u32 i = 0; i < kVec8s; ++i) vec8s[i].vectors[0].bits = load_shared16(slots + i * kSlotStep);
      copy_row(row + step());
      INGOT_UNROLL
      for (u32 i = 0; i < kVec8s; ++i) {
        forget_values(affine[i].gamma);
        if constexpr (kCentred<Kind>) forget_values(affine[i].beta);
      }
      Row r{p, row + group, lane, kThreads};
      take_row(r, affine, vec8s, shared.warp_sums[turn]);
      hide(row);  // no pointer takes registers from row to row
      r.row = row + group;
      Codes* to = r.codes() + lane * kVec8;
      INGOT_UNROLL
      for (u32 i = 0; i < kVec8s; ++i) {
        const U32x2 codes = r.quantized(vec8s[i]);
        if (kGroups == 1 || r.active()) store_streaming(to + i * kStep, codes);
      }
      row += step();
      hide(row);
    }
  }

 private:
  // Turns the thread's elements of a row into the norm's values, and finds the row's statistics and scale.
  INGOT_DEVICE void take_row(Row& r, const typename Row::AffineVec8 (&affine)[kVec8s], Vec8<In> (&vec8s)[kVec8s],
                             float (&warp_sums)[2][kMaxWarps]) const {
    float elements[kVec8s][kVec8];
    INGOT_UNROLL
    for (u32 i = 0; i < kVec8s; ++i) unpack(vec8s[i], elements[i]);
    keep(elements);
    if constexpr (Row::kSubtractsMean) {
      float sum = 0.0F;
      INGOT_UNROLL
      for (u32 i = 0; i < kVec8s; ++i) sum = sum + vec8_sum(elements[i]);
      r.take_sum(group_sum(sum, kThreads, warp_sums[0]));
      INGOT_UNROLL
      for (u32 i = 0; i < kVec8s; ++i) {
        INGOT_UNROLL
        for (float& element : elements[i]) element = element - r.mean;
      }
      keep(elements);
    }
    Row centred = r;  // of elements without their mean
    centred.mean = 0.0F;
    float squares = 0.0F;
    INGOT_UNROLL
    for (u32 i = 0; i < kVec8s; ++i) {
      float x[kVec8];
      INGOT_UNROLL
      for (u32 c = 0; c < kVec8; ++c) x[c] = elements[i][c];
      squares = squares + centred.sum_of_squares(x, kVec8);
    }
    r.take_squares(group_sum(squares, kThreads, warp_sums[1]));
    centred.rstd = r.rstd;
    Vec8sMaximum<In> maximum;
    INGOT_UNROLL
    for (u32 i = 0; i < kVec8s; ++i) {
      vec8s[i] = centred.values(elements[i], affine[i]);
      maximum.take(vec8s[i]);
    }
    INGOT_UNROLL
    for (Vec8<In>& vec8 : vec8s) forget_values(vec8);
    r.take_maximum(group_max_once(maximum.bits(), kThreads, shared.warp_maxima));
  }
};

template <class In, class Kind, class Codes, NormRowsConfig C, i64 kCols>
INGOT_KERNEL void INGOT_LAUNCH_BOUNDS(NormRowsLaunch::threads(kCols), NormRowsFullLaunch::blocks_at_once(kCols))
    norm_rows_full(const __grid_constant__ NormRowsParams p) {
  __shared__ NormRowsShared shared;
  start_in_turn();
  NormRowsFull<In, Kind, Codes, C, kCols>{p, shared}.run();
}

}  // namespace ingot
