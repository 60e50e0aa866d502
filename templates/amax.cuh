// amax: the largest |x|, of a tensor or of each row. Moves each input byte once. Exact, so that no order of the
// elements matters; no atomics, nothing to clear beforehand.
//
// Tensorwise takes two launches: amax_partials leaves one value per block, and either amax_rows reduces those (they are
// one row of f32) or the cast that needs them does so itself (cast.cuh).
#pragma once

#include "memory.cuh"
#include "platform.cuh"
#include "reduce.cuh"
#include "scaling.cuh"

namespace ingot {

struct AmaxParams {
  const void* input;  // In[rows, cols]
  i64 rows, cols;
  i64 input_stride;  // elements
  float* amax;       // amax_partials: one per block; amax_rows: one per row
};

// A matrix without gaps is one row: its segments are then all full.
INGOT_HOST_DEVICE constexpr AmaxParams flattened(AmaxParams p) {
  if (p.rows == 1 || p.input_stride == p.cols) return {p.input, 1, p.rows * p.cols, p.rows * p.cols, p.amax};
  return p;
}

// Blocks take segments of rows in turn, so that the end of the tensor is what the L2 holds when they are done.
struct AmaxPartialsLaunch {
  static constexpr u32 kThreads = 256;
  static constexpr u32 kVectors = 4;      // 16-byte loads in flight, per thread
  static constexpr i64 kMaxBlocks = 512;  // all resident at once on a large GPU, and few enough to reduce again
  INGOT_HOST_DEVICE static constexpr i64 segment(i64 input_bytes) {
    return i64{kThreads} * kVectors * 16 / input_bytes;
  }
  INGOT_HOST_DEVICE static constexpr i64 grid(i64 rows, i64 cols, i64 input_bytes) {
    return min_of(kMaxBlocks, rows * ceil_div(cols, segment(input_bytes)));
  }
};

template <HighPrecision In>
INGOT_KERNEL void INGOT_LAUNCH_BOUNDS(AmaxPartialsLaunch::kThreads, 4) amax_partials(const AmaxParams p) {
  using Launch = AmaxPartialsLaunch;
  constexpr u32 kWidth = kPerVector<In>;
  constexpr i64 kSegment = Launch::segment(sizeof(In));
  __shared__ u32 warp_maxima[kMaxWarps];

  const bool vectorised = vector_aligned<In>(p.input, p.input_stride);
  const u32 segments = static_cast<u32>(ceil_div(p.cols, kSegment));
  const u32 row_step = gridDim.x / segments;
  const u32 segment_step = gridDim.x % segments;
  i64 row = blockIdx.x / segments;
  u32 segment = blockIdx.x % segments;
  u32 maximum = 0;
  while (row < p.rows) {
    const In* source = static_cast<const In*>(p.input) + row * p.input_stride;
    const i64 begin = segment * kSegment;
    const i64 end = min_of(p.cols, begin + kSegment);
    i64 scalars_from = begin;
    if (vectorised) {
      Vector<In> values[Launch::kVectors];
      INGOT_UNROLL
      for (u32 i = 0; i < Launch::kVectors; ++i) {
        const i64 col = begin + (i * i64{Launch::kThreads} + threadIdx.x) * kWidth;
        if (col + kWidth <= end) values[i] = load_vector(source + col);
      }
      INGOT_UNROLL
      for (u32 i = 0; i < Launch::kVectors; ++i) maximum = max_of(maximum, amax_bits(values[i]));
      scalars_from = end - end % kWidth;
    }
    INGOT_UNROLL_BY(1)
    for (i64 col = scalars_from + threadIdx.x; col < end; col += Launch::kThreads) {
      maximum = max_of(maximum, amax_bits(to_float(source[col])));
    }
    row += row_step;
    segment += segment_step;
    if (segment >= segments) {
      segment -= segments;
      ++row;
    }
  }
  maximum = group_max(maximum, Launch::kThreads, warp_maxima);
  if (threadIdx.x == 0) p.amax[blockIdx.x] = amax_from_bits(maximum);
}

// A group of 32 to 512 threads takes a row, about two 16-byte vectors to a thread; blocks of fewer than 128 threads
// hold several groups. Rows of any length: the threads loop.
struct RowsLaunch {
  static constexpr u32 kMaxThreads = 512;
  static constexpr u32 kMinThreads = 128;  // of a block
  static constexpr i64 kMaxBlocks = 0x7fffffff;
  INGOT_HOST_DEVICE static constexpr u32 threads_per_row(i64 cols, i64 input_bytes) {
    u32 threads = 32;
    while (threads < kMaxThreads && threads * (32 / input_bytes) < cols) threads *= 2;
    return threads;
  }
  INGOT_HOST_DEVICE static constexpr u32 threads(i64 cols, i64 input_bytes) {
    return max_of(kMinThreads, threads_per_row(cols, input_bytes));
  }
  INGOT_HOST_DEVICE static constexpr i64 rows_per_block(i64 cols, i64 input_bytes) {
    return threads(cols, input_bytes) / threads_per_row(cols, input_bytes);
  }
  INGOT_HOST_DEVICE static constexpr i64 grid(i64 rows, i64 cols, i64 input_bytes) {
    return min_of(kMaxBlocks, ceil_div(rows, rows_per_block(cols, input_bytes)));
  }
};

// The largest |x| bits that one thread of a row's group sees.
template <HighPrecision In>
INGOT_DEVICE u32 amax_of_row(const In* source, i64 cols, bool vectorised, u32 lane, u32 threads) {
  constexpr u32 kWidth = kPerVector<In>;
  u32 maximum = 0;
  i64 scalars_from = 0;
  if (vectorised) {
    scalars_from = cols - cols % kWidth;
    INGOT_UNROLL_BY(2)
    for (i64 col = i64{lane} * kWidth; col < scalars_from; col += i64{threads} * kWidth) {
      maximum = max_of(maximum, amax_bits(load_vector(source + col)));
    }
  }
  INGOT_UNROLL_BY(1)
  for (i64 col = scalars_from + lane; col < cols; col += threads) {
    maximum = max_of(maximum, amax_bits(to_float(source[col])));
  }
  return maximum;
}

template <HighPrecision In>
INGOT_KERNEL void INGOT_LAUNCH_BOUNDS(RowsLaunch::kMaxThreads, 2) amax_rows(const AmaxParams p) {
  __shared__ u32 warp_maxima[kMaxWarps];
  const u32 threads = RowsLaunch::threads_per_row(p.cols, sizeof(In));
  const u32 lane = threadIdx.x % threads;
  const u32 rows_per_block = blockDim.x / threads;
  const bool vectorised = vector_aligned<In>(p.input, p.input_stride);
  for (i64 first_row = i64{blockIdx.x} * rows_per_block; first_row < p.rows;
       first_row += i64{gridDim.x} * rows_per_block) {
    const i64 row = first_row + threadIdx.x / threads;
    u32 maximum = 0;
    if (row < p.rows) {
      maximum = amax_of_row(static_cast<const In*>(p.input) + row * p.input_stride, p.cols, vectorised, lane, threads);
    }
    maximum = group_max(maximum, threads, warp_maxima);
    if (row < p.rows && lane == 0) p.amax[row] = amax_from_bits(maximum);
  }
}

}  // namespace ingot
