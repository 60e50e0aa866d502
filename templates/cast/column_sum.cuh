// sum[j] = sum over rows r of x[r, j], for x[rows, cols]: the gradient of a bias. It reads each input byte once.
//
// The order of summation is fixed, so that the CPU reference gives the same bits. With R = rows_per_chunk(rows), chunk
// c sums rows c * R .. min(rows, (c + 1) * R) - 1 in ascending order in f32, starting from 0, with plain additions; the
// chunks' sums are added in ascending order in f32, starting from 0; from_float<Out> rounds the total once.
//
// It takes two launches: a block of the first sums one chunk of rows of a strip of columns; a block of the second
// brings the partial sums of 32 columns to shared memory, where a thread adds up one column. R grows with the square
// root of the rows, so both passes stay parallel and the rounding error stays small.
#pragma once

#include "memory.cuh"
#include "numerics.cuh"
#include "platform.cuh"

namespace ingot {

inline constexpr i64 kMinRowsPerChunk = 32;

// The smallest power of two R >= 32 with 4 R^2 >= rows: at most 2 sqrt(rows) chunks, or one per 32 rows.
INGOT_HOST_DEVICE constexpr i64 rows_per_chunk(i64 rows) {
  i64 chunk = kMinRowsPerChunk;
  while (4 * chunk * chunk < rows) chunk *= 2;
  return chunk;
}

INGOT_HOST_DEVICE constexpr i64 chunk_count(i64 rows) { return ceil_div(rows, rows_per_chunk(rows)); }

struct ColumnSumParams {
  const void* input;  // In[rows, cols]
  i64 rows, cols;
  i64 input_stride;  // elements
  float* partials;   // [chunk_count(rows), cols], dense
};

// The chunks may come from any kernel: others leave partial sums too (cast_tiles.cuh, norm_backward.cuh).
struct ColumnSumFinishParams {
  const float* partials;  // [chunks, cols], dense
  i64 chunks, cols;
  void* sum;        // Out[sum_cols]: for the first columns
  i64 sum_cols;     // at most cols
  void* other_sum;  // Out[cols - sum_cols]: for the other columns
};

// First pass: a block takes one chunk of `cols_per_block` columns, 16 bytes of them per thread.
struct ColumnSumPartialsLaunch {
  static constexpr u32 kThreads = 128;
  INGOT_HOST_DEVICE static constexpr i64 cols_per_block(i64 input_bytes) { return i64{kThreads} * (16 / input_bytes); }
  INGOT_HOST_DEVICE static constexpr i64 strips(i64 cols, i64 input_bytes) {
    return ceil_div(cols, cols_per_block(input_bytes));
  }
  INGOT_HOST_DEVICE static constexpr i64 grid(i64 rows, i64 cols, i64 input_bytes) {
    return strips(cols, input_bytes) * chunk_count(rows);
  }
};

// Second pass: a block loads up to kChunks chunks at a time, so that a thread waits for memory once per kChunks chunks.
struct ColumnSumFinishLaunch {
  static constexpr u32 kThreads = 256;
  static constexpr u32 kCols = 32;
  static constexpr u32 kChunks = 128;
  INGOT_HOST_DEVICE static constexpr i64 grid(i64 cols) { return ceil_div(cols, i64{kCols}); }
};

template <HighPrecision In>
INGOT_KERNEL void INGOT_LAUNCH_BOUNDS(ColumnSumPartialsLaunch::kThreads, 8)
    column_sum_partials(const ColumnSumParams p) {
  start_in_turn();
  using Launch = ColumnSumPartialsLaunch;
  constexpr u32 kWidth = kPerVector<In>;
  const u32 strips = static_cast<u32>(Launch::strips(p.cols, sizeof(In)));
  const i64 chunk = blockIdx.x / strips;
  const i64 first_col = blockIdx.x % strips * Launch::cols_per_block(sizeof(In));
  const i64 chunk_rows = rows_per_chunk(p.rows);
  const i64 first_row = chunk * chunk_rows;
  const i64 rows = min_of(chunk_rows, p.rows - first_row);
  const In* input = static_cast<const In*>(p.input) + first_row * p.input_stride;
  float* partials = p.partials + chunk * p.cols;

  const i64 col = first_col + i64{threadIdx.x} * kWidth;
  if (vector_aligned<In>(p.input, p.input_stride) && first_col + Launch::cols_per_block(sizeof(In)) <= p.cols) {
    float sums[kWidth] = {};
    const In* source = input + col;
    INGOT_UNROLL_BY(8)
    for (i64 row = 0; row < rows; ++row, source += p.input_stride) {
      float values[kWidth];
      unpack(load_vector(source), values);
      INGOT_UNROLL
      for (u32 i = 0; i < kWidth; ++i) sums[i] = sums[i] + values[i];
    }
    INGOT_UNROLL
    for (u32 i = 0; i < kWidth; ++i) partials[col + i] = sums[i];
    return;
  }
  for (i64 c = first_col + threadIdx.x; c < min_of(p.cols, first_col + Launch::cols_per_block(sizeof(In)));
       c += Launch::kThreads) {
    float sum = 0.0F;
    const In* source = input + c;
    INGOT_UNROLL_BY(8)
    for (i64 row = 0; row < rows; ++row, source += p.input_stride) sum = sum + to_float(*source);
    partials[c] = sum;
  }
}

template <HighPrecision Out>
INGOT_KERNEL void INGOT_LAUNCH_BOUNDS(ColumnSumFinishLaunch::kThreads, 4)
    column_sum_finish(const ColumnSumFinishParams p) {
  using Launch = ColumnSumFinishLaunch;
  constexpr u32 kRows = Launch::kThreads / Launch::kCols;  // chunks that the block reads at a time
  constexpr u32 kLoads = Launch::kChunks / kRows;
  __shared__ float partials[Launch::kChunks][Launch::kCols];
  start_in_turn();
  const u32 lane = threadIdx.x % Launch::kCols;
  const u32 first_chunk = threadIdx.x / Launch::kCols;
  const i64 col = i64{blockIdx.x} * Launch::kCols + lane;
  const float* source = p.partials + first_chunk * p.cols + col;
  float total = 0.0F;
  INGOT_UNROLL_BY(1)
  for (i64 begin = 0; begin < p.chunks; begin += Launch::kChunks) {
    const u32 count = col < p.cols ? static_cast<u32>(min_of(p.chunks - begin, i64{Launch::kChunks})) : 0;
    // All loads are issued before the first is waited for. Past the last chunk are zeros, which change no sum.
    float loaded[kLoads];
    INGOT_UNROLL
    for (u32 i = 0; i < kLoads; ++i, source += kRows * p.cols) {
      loaded[i] = first_chunk + i * kRows < count ? *source : 0.0F;
    }
    INGOT_UNROLL
    for (u32 i = 0; i < kLoads; ++i) partials[first_chunk + i * kRows][lane] = loaded[i];
    __syncthreads();
    if (first_chunk == 0) {
      INGOT_UNROLL_BY(1)
      for (u32 first = 0; first < count; first += kLoads) {
        INGOT_UNROLL
        for (u32 i = 0; i < kLoads; ++i) total = total + partials[first + i][lane];
      }
    }
    __syncthreads();
  }
  if (first_chunk != 0 || col >= p.cols) return;
  const bool first = col < p.sum_cols;
  static_cast<Out*>(first ? p.sum : p.other_sum)[first ? col : col - p.sum_cols] = from_float<Out>(total);
}

}  // namespace ingot
