// elementwise and elementwise_pair that also sum a further expression of the same inputs over each row: of a gated
// MLP's gradients, the gradient of a factor that all columns of a row share, such as a router's weight.
//
// A group of 32 to 256 threads takes a row. Each thread takes 8 neighbouring columns at a time, in ascending order, and
// adds their values one after the other, from 0; then come the threads' sums, as group_sums() adds them. So each row's
// sum is its own, whatever other rows hold. NaN is the one that from_float() gives.
#pragma once

#include "cast/elementwise.cuh"
#include "cast/elementwise_pair.cuh"
#include "numerics.cuh"
#include "platform.cuh"
#include "reduce.cuh"
#include "vec8.cuh"

namespace ingot {

template <class ValuesParams>
struct ElementwiseRowsParams {
  ValuesParams values;  // of the kernel without the sums; across_log2 is not read
  float* sums;          // [rows]
  u32 threads_log2;     // log2 of the threads of a row
};

struct ElementwiseRowsLaunch {
  static constexpr u32 kThreads = 256;
  static constexpr u32 kThreadsLog2 = 8;
  // Rows are fetched two Vec8s a thread at a time.
  static constexpr u32 kBatch = 2;
  INGOT_HOST_DEVICE static constexpr u32 threads_log2(i64 cols) {
    u32 log2 = 5;
    while (log2 < kThreadsLog2 && (i64{kVec8 * kBatch} << log2) < cols) ++log2;
    return log2;
  }
  INGOT_HOST_DEVICE static constexpr i64 grid(i64 rows, i64 cols) {
    return ceil_div(rows, i64{1} << (kThreadsLog2 - threads_log2(cols)));
  }
};

// No sums, and no maxima of what a thread writes from a column on (elementwise_maxima.cuh has others).
struct NothingSummed {};
struct NoMaxima {
  INGOT_DEVICE NoMaximum from(u32) { return {}; }
};

// The part of a row that one thread has.
template <class Output, class Summed>
struct ElementwiseRowPart {
  static constexpr bool kSums = !is_same<Summed, NothingSummed>;
  using Source = typename Output::Source;
  using Params = typename Output::Params;

  const Params& p;
  i64 row;
  u32 lane, threads;  // of the row

  INGOT_DEVICE const SourceParams& source() const { return Output::shared(p).source; }

  // Where rows can be read and written 8 elements at a time. Returns the sum.
  template <class Maxima>
  INGOT_DEVICE float by_vec8s(Maxima& maxima) const {
    constexpr u32 kBatch = ElementwiseRowsLaunch::kBatch;
    const typename Source::Pointers from = Source::pointers_at(source(), row, 0);
    const u32 cols = static_cast<u32>(source().cols);
    const u32 step = threads * kVec8;
    float sum = 0.0F;
    INGOT_UNROLL_BY(1)
    for (u32 first = lane * kVec8; first < cols; first += kBatch * step) {
      typename Source::Raw raw[kBatch] = {};
      typename Source::RawColumns columns[kBatch] = {};
      INGOT_UNROLL
      for (u32 i = 0; i < kBatch; ++i) {
        if (first + i * step >= cols) continue;
        raw[i] = Source::fetch(source(), from, 0, first + i * step);
        columns[i] = Source::fetch_columns(from, first + i * step);
      }
      INGOT_UNROLL
      for (u32 i = 0; i < kBatch; ++i) {
        if (first + i * step >= cols) continue;
        if constexpr (kSums) {
          float values[kVec8];
          Source::template compute<Summed>(raw[i], columns[i], values);
          INGOT_UNROLL
          for (const float value : values) sum = sum + value;
        }
        auto maximum = maxima.from(first + i * step);
        Output::at(p, row, first + i * step).store_vec8(p, 0, raw[i], columns[i], maximum);
      }
    }
    return sum;
  }

  // The same for any alignment and width: each element is read before it is written.
  template <class Maxima>
  INGOT_DEVICE float by_elements(Maxima& maxima) const {
    const i64 cols = source().cols;
    float sum = 0.0F;
    INGOT_UNROLL_BY(1)
    for (i64 first = i64{lane} * kVec8; first < cols; first += i64{threads} * kVec8) {
      INGOT_UNROLL_BY(1)
      for (i64 col = first; col < min_of(cols, first + kVec8); ++col) {
        if constexpr (kSums) sum = sum + Source::template float_of<Summed>(source(), row, col);
        auto maximum = maxima.from(static_cast<u32>(col));
        Output::at(p, row, col).store(Output::element(p, row, col), maximum);
      }
    }
    return sum;
  }
};

// Output: ElementwiseOutput or ElementwisePairOutput. Summed: the expression of the sums, of the same inputs.
template <class Output, class Summed>
INGOT_KERNEL void INGOT_LAUNCH_BOUNDS(ElementwiseRowsLaunch::kThreads, 2)
    elementwise_rows(const __grid_constant__ ElementwiseRowsParams<typename Output::Params> p) {
  __shared__ float warp_sums[kMaxWarps][1];
  start_in_turn();
  const SourceParams& source = Output::shared(p.values).source;
  const u32 threads = 1U << p.threads_log2;
  const i64 row =
      (i64{blockIdx.x} << (ElementwiseRowsLaunch::kThreadsLog2 - p.threads_log2)) + (threadIdx.x >> p.threads_log2);
  const ElementwiseRowPart<Output, Summed> part{p.values, row, threadIdx.x & (threads - 1), threads};
  const bool by_vec8s = Output::Source::aligned(source) && Output::aligned(p.values) && source.cols % kVec8 == 0 &&
                        source.cols <= i64{1} << 30;
  float sums[1] = {};
  NoMaxima none;
  if (row < source.rows) sums[0] = by_vec8s ? part.by_vec8s(none) : part.by_elements(none);
  group_sums(sums, threads, warp_sums);
  if (row < source.rows && part.lane == 0) p.sums[row] = from_float<f32>(sums[0]);
}

}  // namespace ingot
