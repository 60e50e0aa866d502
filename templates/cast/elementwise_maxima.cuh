// elementwise and elementwise_pair that also find the largest |value| that they write of each row and of each column,
// and may sum a further expression over each row, as elementwise_rows does: a cast of what they wrote, with scales of
// rows and, transposed, of columns, needs no pass for its maxima. The values are those after rounding, NaN is kept, and
// the sums have elementwise_rows's bits.
//
// Rows and their parts are those of elementwise_rows. About as many blocks as are resident at once share the rows: a
// block takes neighbouring ones, each thread the same columns of each. So no other thread touches the maxima of these
// columns in shared memory, 16-bit values as 16 bits, which the block raises in memory once, after its last row. What
// the warps of a row found goes to shared memory too, of several rows before the next barrier, so that a warp need not
// wait for the others at each row.
#pragma once

#include "cast/elementwise_rows.cuh"
#include "memory.cuh"
#include "numerics.cuh"
#include "platform.cuh"
#include "reduce.cuh"
#include "scaling.cuh"
#include "shared.cuh"
#include "vec8.cuh"

namespace ingot {

template <class ValuesParams>
struct ElementwiseMaximaParams {
  ElementwiseRowsParams<ValuesParams> rows;  // sums is not read if nothing is summed
  float* row_amax;                           // [rows]
  u32* column_amax;                          // [cols] of each output in turn, zeros: raised, as bits
  i64 rows_per_block;
};

struct ElementwiseMaximaLaunch {
  static constexpr u32 kThreads = ElementwiseRowsLaunch::kThreads;
  static constexpr u32 kWarps = kThreads / 32;
  static constexpr u32 kTurn = 8;  // rows of a group of threads from one barrier to the next
  // Two blocks fit a multiprocessor of sm_90.
  static constexpr i64 kMostShared = i64{96} << 10;
  INGOT_HOST_DEVICE static constexpr i64 groups(u32 threads_log2) { return i64{kThreads} >> threads_log2; }
  // The bytes of the maxima that one group of threads keeps of one output.
  INGOT_HOST_DEVICE static constexpr i64 row_bytes(i64 cols, u64 value_bytes) {
    return ceil_div(cols, i64{kVec8}) * kVec8 * static_cast<i64>(value_bytes);
  }
  INGOT_HOST_DEVICE static constexpr i64 shared_bytes(i64 cols, u64 value_bytes, i64 outputs) {
    return groups(ElementwiseRowsLaunch::threads_log2(cols)) * outputs * row_bytes(cols, value_bytes);
  }
  // Raising the maxima of a few rows would take longer than the rows.
  INGOT_HOST_DEVICE static constexpr i64 rows_per_block(i64 rows, i64 cols, i64 resident) {
    const i64 at_once = groups(ElementwiseRowsLaunch::threads_log2(cols));
    return ceil_div(max_of(i64{kTurn}, ceil_div(rows, resident)), at_once) * at_once;
  }
  INGOT_HOST_DEVICE static constexpr i64 grid(i64 rows, i64 rows_per_block) { return ceil_div(rows, rows_per_block); }
};

// What warps found of rows.
struct ElementwiseMaximaShared {
  float sums[2][ElementwiseMaximaLaunch::kTurn][ElementwiseMaximaLaunch::kWarps];
  u32 maxima[2][ElementwiseMaximaLaunch::kTurn][ElementwiseMaximaLaunch::kWarps];
};

// The largest |value| of a thread's part of a row, and of its columns, which are in shared memory.
template <HighPrecision In>
struct RowAndColumnMaxima {
  u8* columns;       // those of the first output
  u32 output_bytes;  // from one output's to the next one's
  Vec8sMaximum<In> row_vec8s{};
  u32 row_elements = 0;

  // Of what is written from one column on: the first output's, then the second's.
  struct Maximum {
    RowAndColumnMaxima& all;
    u8* at;

    INGOT_DEVICE const Vec8<In>& take(const Vec8<In>& written) {
      all.row_vec8s.take(written);
      ColumnMaxima<In> maxima;
      INGOT_UNROLL
      for (u32 v = 0; v < Vec8<In>::kVectors; ++v) {
        const U32x4 bits = reinterpret_cast<const U32x4*>(at)[v];
        maxima.words[4 * v] = bits.x;
        maxima.words[4 * v + 1] = bits.y;
        maxima.words[4 * v + 2] = bits.z;
        maxima.words[4 * v + 3] = bits.w;
      }
      maxima.take(written);
      INGOT_UNROLL
      for (u32 v = 0; v < Vec8<In>::kVectors; ++v) {
        reinterpret_cast<U32x4*>(at)[v] = {maxima.words[4 * v], maxima.words[4 * v + 1], maxima.words[4 * v + 2],
                                           maxima.words[4 * v + 3]};
      }
      at += all.output_bytes;
      return written;
    }
    INGOT_DEVICE const In& take(const In& written) {
      const u32 bits = amax_bits(to_float(written));
      all.row_elements = max_of(all.row_elements, bits);
      In& column = *reinterpret_cast<In*>(at);
      if (bits > amax_bits(to_float(column))) column = from_float<In>(float_from_bits(bits));
      at += all.output_bytes;
      return written;
    }
  };

  INGOT_DEVICE Maximum from(u32 col) { return {*this, columns + col * static_cast<u32>(sizeof(In))}; }
  // Those of the row, which the next one's follow.
  INGOT_DEVICE u32 take_row() {
    const u32 bits = max_of(row_vec8s.bits(), row_elements);
    row_vec8s = {};
    row_elements = 0;
    return bits;
  }
};

template <class Output, class Summed>
struct ElementwiseMaxima {
  using Launch = ElementwiseMaximaLaunch;
  using Params = ElementwiseMaximaParams<typename Output::Params>;
  using In = typename Output::In;
  using Part = ElementwiseRowPart<Output, Summed>;

  const Params& p;
  ElementwiseMaximaShared& shared;

  INGOT_DEVICE const SourceParams& source() const { return Output::shared(p.rows.values).source; }
  INGOT_DEVICE u32 threads_log2() const { return p.rows.threads_log2; }
  INGOT_DEVICE u32 groups() const { return Launch::kThreads >> threads_log2(); }
  INGOT_DEVICE u32 row_bytes() const { return static_cast<u32>(Launch::row_bytes(source().cols, sizeof(In))); }

  // The columns' maxima of a group and an output.
  INGOT_DEVICE u8* columns(u32 group, u32 output) const {
    return &dynamic_shared_as<u8>() + (group * Output::kOutputs + output) * row_bytes();
  }

  INGOT_DEVICE void clear() const {
    const u32 vectors = groups() * Output::kOutputs * row_bytes() / 16;
    INGOT_UNROLL_BY(1)
    for (u32 i = threadIdx.x; i < vectors; i += Launch::kThreads) {
      reinterpret_cast<U32x4*>(columns(0, 0))[i] = {0, 0, 0, 0};
    }
    __syncthreads();
  }

  // Writes the sums and the maxima of `count` rows of each group from `first` on: a thread adds a row's warps up.
  INGOT_DEVICE void write(u32 turn, i64 first, i64 end, u32 count) const {
    const u32 group = threadIdx.x / Launch::kTurn;
    const u32 i = threadIdx.x % Launch::kTurn;
    const i64 row = first + i64{i} * groups() + group;
    if (group >= groups() || i >= count || row >= end) return;
    const u32 warps = (1U << threads_log2()) / 32;
    const u32 warp = group * warps;
    float sum = shared.sums[turn][i][warp];
    u32 maximum = shared.maxima[turn][i][warp];
    INGOT_UNROLL_BY(1)
    for (u32 w = 1; w < warps; ++w) {
      sum = sum + shared.sums[turn][i][warp + w];
      maximum = max_of(maximum, shared.maxima[turn][i][warp + w]);
    }
    if constexpr (Part::kSums) p.rows.sums[row] = from_float<f32>(sum);
    p.row_amax[row] = amax_from_bits(maximum);
  }

  INGOT_DEVICE void take(i64 first, i64 end) const {
    const u32 threads = 1U << threads_log2();
    const u32 group = threadIdx.x >> threads_log2();
    const u32 lane = threadIdx.x & (threads - 1);
    const bool by_vec8s =
        Output::Source::aligned(source()) && Output::aligned(p.rows.values) && source().cols % kVec8 == 0;
    RowAndColumnMaxima<In> maxima{columns(group, 0), row_bytes()};
    u32 turn = 0;
    INGOT_UNROLL_BY(1)
    for (; first < end; first += i64{Launch::kTurn} * groups(), turn ^= 1) {
      const u32 count = static_cast<u32>(min_of(ceil_div(end - first, i64{groups()}), i64{Launch::kTurn}));
      INGOT_UNROLL_BY(1)
      for (u32 i = 0; i < count; ++i) {
        const i64 row = first + i64{i} * groups() + group;
        const Part part{p.rows.values, row, lane, threads};
        float sum = 0.0F;
        if (row < end) sum = by_vec8s ? part.by_vec8s(maxima) : part.by_elements(maxima);
        if constexpr (Part::kSums) sum = warp_sum(sum);
        const u32 maximum = __reduce_max_sync(0xffffffffU, maxima.take_row());
        if (lane % 32 != 0) continue;
        shared.sums[turn][i][threadIdx.x / 32] = sum;
        shared.maxima[turn][i][threadIdx.x / 32] = maximum;
      }
      __syncthreads();
      write(turn, first, end, count);
    }
  }

  // After a barrier. Neighbouring threads raise neighbouring columns.
  INGOT_DEVICE void raise() const {
    const u32 cols = static_cast<u32>(source().cols);
    INGOT_UNROLL_BY(1)
    for (u32 output = 0; output < Output::kOutputs; ++output) {
      INGOT_UNROLL_BY(1)
      for (u32 col = threadIdx.x; col < cols; col += Launch::kThreads) {
        u32 maximum = 0;
        INGOT_UNROLL_BY(1)
        for (u32 group = 0; group < groups(); ++group) {
          maximum = max_of(maximum, amax_bits(to_float(reinterpret_cast<const In*>(columns(group, output))[col])));
        }
        raise_maximum(p.column_amax + output * source().cols + col, maximum);
      }
    }
  }
};

// Output: ElementwiseOutput or ElementwisePairOutput. Summed: the expression of the sums, or NothingSummed.
template <class Output, class Summed>
INGOT_KERNEL void INGOT_LAUNCH_BOUNDS(ElementwiseMaximaLaunch::kThreads, 2)
    elementwise_maxima(const __grid_constant__ ElementwiseMaximaParams<typename Output::Params> p) {
  __shared__ ElementwiseMaximaShared shared;
  start_in_turn();
  const ElementwiseMaxima<Output, Summed> block{p, shared};
  block.clear();
  const i64 first = i64{blockIdx.x} * p.rows_per_block;
  block.take(first, min_of(block.source().rows, first + p.rows_per_block));
  block.raise();
}

}  // namespace ingot
