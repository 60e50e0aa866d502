// Statistics of a cast: the values' amax; how many are NaN, Inf, saturated or flushed to zero; the energy of the values
// and of the error. It reads each value and each code once.
//
// A block takes a tile of 128 x 128: thread t has columns 8 (t % 16) .. + 7 of rows t / 16, t / 16 + 16, ..., row by
// row. Transposed codes of the tile go through shared memory. The sums are f64, in a fixed order, so that the CPU
// reference gives the same bits: each thread adds its elements in the order above; the 256 threads of a block are added
// in a tree (thread t adds thread t + 128, then t + 64, ...); thread t of one last block adds tiles t, t + 256, ... in
// ascending order; then the same tree.
#pragma once

#include "memory.cuh"
#include "numerics.cuh"
#include "platform.cuh"
#include "scaling.cuh"
#include "vec8.cuh"

namespace ingot {

// Stands for an FP8 format where there are only values and no codes.
struct Uncast {};

// A value whose magnitude exceeds this many factors counts as saturated. A dynamic scale and its factor are rounded,
// which moves FP8_MAX * factor by at most 2^-23 of itself away from the amax; that must not count.
template <Fp8Format F>
inline constexpr float kReach = static_cast<float>(F::kMax*(1 + 0x1p-22));

// The statistics of some elements. (It has no initialisers, because it is in shared memory.)
struct CastStatsPart {
  u64 nan_count, inf_count;
  u64 saturated, flushed, spoiled;
  double sum_of_squares, sum_of_squared_errors;
  u32 amax;                             // bits, NaN on top
  u32 smallest;                         // bits of the smallest nonzero |x|, less 1: 0 wraps around and comes last
  u32 smallest_factor, largest_factor;  // bits
};

// The result, laid out like ingot::CastStats (src/runtime/cast/cast_tensors.h).
struct CastStatsResult {
  u64 nan_count, inf_count;
  u64 saturated, flushed, spoiled;
  double sum_of_squares, sum_of_squared_errors;
  float amax, smallest, smallest_factor, largest_factor;
};

INGOT_HOST_DEVICE CastStatsPart no_stats() { return {0, 0, 0, 0, 0, 0.0, 0.0, 0, 0xffffffffU, 0xffffffffU, 0}; }

INGOT_HOST_DEVICE void merge(CastStatsPart& into, const CastStatsPart& from) {
  into.nan_count += from.nan_count;
  into.inf_count += from.inf_count;
  into.saturated += from.saturated;
  into.flushed += from.flushed;
  into.spoiled += from.spoiled;
  into.sum_of_squares = into.sum_of_squares + from.sum_of_squares;
  into.sum_of_squared_errors = into.sum_of_squared_errors + from.sum_of_squared_errors;
  into.amax = max_of(into.amax, from.amax);
  into.smallest = min_of(into.smallest, from.smallest);
  into.smallest_factor = min_of(into.smallest_factor, from.smallest_factor);
  into.largest_factor = max_of(into.largest_factor, from.largest_factor);
}

INGOT_HOST_DEVICE CastStatsResult result_of(const CastStatsPart& part) {
  // An entry that no element has raised or lowered is reported as 0; so is the smallest if all elements are NaN.
  const bool has_smallest = part.smallest < kF32Inf;
  const bool has_factors = part.smallest_factor <= part.largest_factor;
  return {part.nan_count,
          part.inf_count,
          part.saturated,
          part.flushed,
          part.spoiled,
          part.sum_of_squares,
          part.sum_of_squared_errors,
          amax_from_bits(part.amax),
          has_smallest ? float_from_bits(part.smallest + 1) : 0.0F,
          has_factors ? amax_from_bits(part.smallest_factor) : 0.0F,
          has_factors ? amax_from_bits(part.largest_factor) : 0.0F};
}

// Adds one element.
template <class Out>
INGOT_HOST_DEVICE void take(CastStatsPart& part, float x, [[maybe_unused]] u8 code, [[maybe_unused]] float factor) {
  const u32 bits = amax_bits(x);
  const bool finite = bits < kF32Inf;
  part.amax = max_of(part.amax, bits);
  part.smallest = min_of(part.smallest, bits - 1);
  part.nan_count += bits > kF32Inf ? 1U : 0U;
  part.inf_count += bits == kF32Inf ? 1U : 0U;
  const double value = x;
  if constexpr (is_same<Out, Uncast>) {
    if (finite) part.sum_of_squares = part.sum_of_squares + value * value;
  } else {
    const float decoded = decode(Out{code});
    const bool restored = amax_bits(decoded) < kF32Inf && amax_bits(factor) < kF32Inf;
    part.smallest_factor = min_of(part.smallest_factor, amax_bits(factor));
    part.largest_factor = max_of(part.largest_factor, amax_bits(factor));
    part.saturated += finite && float_from_bits(bits) > kReach<Out> * float_from_bits(amax_bits(factor)) ? 1U : 0U;
    part.flushed += finite && bits != 0 && decoded == 0.0F ? 1U : 0U;
    part.spoiled += finite && !restored ? 1U : 0U;
    if (finite && restored) {
      // The product is exact: 4 bits times 24.
      const double error = value - static_cast<double>(decoded) * static_cast<double>(factor);
      part.sum_of_squares = part.sum_of_squares + value * value;
      part.sum_of_squared_errors = part.sum_of_squared_errors + error * error;
    }
  }
}

struct CastStatsLaunch {
  static constexpr u32 kThreads = 256;
  static constexpr i64 kTile = kGroup;
  static constexpr u32 kThreadsPerRow = static_cast<u32>(kTile) / kVec8;
  static constexpr u32 kRowsPerStep = kThreads / kThreadsPerRow;
  INGOT_HOST_DEVICE static constexpr i64 tiles(i64 rows, i64 cols) {
    return ceil_div(rows, kTile) * ceil_div(cols, kTile);
  }
  // The thread that has element (row, col) of a tile.
  INGOT_HOST_DEVICE static constexpr u32 thread_of(u32 row, u32 col) {
    return row % kRowsPerStep * kThreadsPerRow + col / kVec8;
  }
};

// Finds the factor of element (row, col) of a tile. For every granularity the factor's index is a sum of four terms,
// one for each position, because groups start where tiles do.
struct FactorSteps {
  i64 per_tile_row, per_tile_col, per_row, per_col;
  INGOT_HOST_DEVICE i64 index(i64 tile_row, i64 tile_col, i64 row, i64 col) const {
    return tile_row * per_tile_row + tile_col * per_tile_col + row * per_row + col * per_col;
  }
};

// The granularities that have such steps: extents of one, all (0) or a tile's rows, and likewise columns.
INGOT_HOST_DEVICE constexpr bool has_factor_steps(i64 extent_rows, i64 extent_cols) {
  constexpr i64 kTile = CastStatsLaunch::kTile;
  return (extent_rows <= 1 || extent_rows == kTile) && (extent_cols <= 1 || extent_cols == kTile);
}

// The steps of a granularity, from its extents.
INGOT_HOST_DEVICE constexpr FactorSteps factor_steps(i64 extent_rows, i64 extent_cols, i64 cols) {
  constexpr i64 kTile = CastStatsLaunch::kTile;
  const i64 across = extent_cols == 0 ? 1 : ceil_div(cols, extent_cols);
  return {.per_tile_row = extent_rows == 0 ? 0 : kTile / extent_rows * across,
          .per_tile_col = extent_cols == 0 ? 0 : kTile / extent_cols,
          .per_row = extent_rows == 1 ? across : 0,
          .per_col = extent_cols == 1 ? 1 : 0};
}

struct CastStatsParams {
  const void* input;  // In[rows, cols]
  i64 rows, cols;
  i64 input_stride;
  const u8* codes;  // [rows, cols], or [cols, rows]
  i64 codes_stride;
  const float* factors;
  FactorSteps steps;
  CastStatsPart* parts;  // one per tile
};

struct CastStatsFinishParams {
  const CastStatsPart* parts;
  i64 count;
  CastStatsResult* result;
};

// Merges the block's parts into parts[0].
INGOT_DEVICE void merge_block(CastStatsPart (&parts)[CastStatsLaunch::kThreads]) {
  INGOT_UNROLL_BY(1)
  for (u32 half = CastStatsLaunch::kThreads / 2; half != 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) merge(parts[threadIdx.x], parts[threadIdx.x + half]);
  }
}

// Loads the first `count` of 8 codes, the first in the low byte.
INGOT_DEVICE u64 load_codes(const u8* source, u32 count, bool vectorised) {
  if (vectorised && count == kVec8) {
    const U32x2 words = *reinterpret_cast<const U32x2*>(source);
    return u64{words.y} << 32 | words.x;
  }
  u64 codes = 0;
  INGOT_UNROLL
  for (u32 i = 0; i < kVec8; ++i) {
    if (i < count) codes |= u64{source[i]} << (8 * i);
  }
  return codes;
}

template <HighPrecision In>
INGOT_DEVICE void load_values(const In* source, u32 count, bool vectorised, float (&x)[kVec8]) {
  if (vectorised && count == kVec8) {
    unpack(load_vec8_once(source), x);
    return;
  }
  INGOT_UNROLL
  for (u32 i = 0; i < kVec8; ++i) x[i] = i < count ? to_float(source[i]) : 0.0F;
}

// Transposed codes of a tile. Rows are 129 bytes apart, so that the 16 threads that read a column use 16 banks.
struct TurnedCodes {
  u8 codes[CastStatsLaunch::kTile][CastStatsLaunch::kTile + 1];
};

INGOT_DEVICE void load_turned(const CastStatsParams& p, i64 first_row, i64 first_col, TurnedCodes& shared) {
  using Launch = CastStatsLaunch;
  const u32 row = threadIdx.x % Launch::kThreadsPerRow * kVec8;
  const i64 rows_left = p.rows - first_row - row;
  const u32 count = static_cast<u32>(min_of(i64{kVec8}, max_of(i64{0}, rows_left)));
  const bool vectorised = rows_aligned<u8>(p.codes, p.codes_stride, kVec8);
  INGOT_UNROLL_BY(2)
  for (u32 col = threadIdx.x / Launch::kThreadsPerRow; col < Launch::kTile; col += Launch::kRowsPerStep) {
    if (first_col + col >= p.cols) break;
    const u64 codes = load_codes(p.codes + (first_col + col) * p.codes_stride + first_row + row, count, vectorised);
    INGOT_UNROLL
    for (u32 i = 0; i < kVec8; ++i) shared.codes[col][row + i] = static_cast<u8>(codes >> (8 * i));
  }
}

// The kernel's template arguments that are not types.
struct CastStatsConfig {
  bool transposed = false;  // the codes are
};

template <HighPrecision In, class Out, CastStatsConfig C>
INGOT_KERNEL void INGOT_LAUNCH_BOUNDS(CastStatsLaunch::kThreads, 2)
    cast_stats_tiles(const __grid_constant__ CastStatsParams p) {
  using Launch = CastStatsLaunch;
  constexpr bool kCodes = !is_same<Out, Uncast>;
  __shared__ CastStatsPart parts[Launch::kThreads];
  start_in_turn();
  const i64 across = ceil_div(p.cols, Launch::kTile);
  const i64 tile_row = blockIdx.x / across;
  const i64 tile_col = blockIdx.x % across;
  const i64 first_row = tile_row * Launch::kTile;
  const i64 first_col = tile_col * Launch::kTile;
  const u32 col = threadIdx.x % Launch::kThreadsPerRow * kVec8;
  const u32 width = static_cast<u32>(min_of(i64{kVec8}, max_of(i64{0}, p.cols - first_col - col)));
  const u32 rows = static_cast<u32>(min_of(Launch::kTile, p.rows - first_row));
  const In* const input = static_cast<const In*>(p.input) + first_row * p.input_stride + first_col + col;
  const bool vectorised = vector_aligned<In>(p.input, p.input_stride);
  [[maybe_unused]] const bool codes_vectorised = rows_aligned<u8>(p.codes, p.codes_stride, kVec8);

  CastStatsPart part = no_stats();
  const auto take_row = [&](u32 row, u64 codes) {
    float x[kVec8];
    load_values(input + row * p.input_stride, width, vectorised, x);
    INGOT_UNROLL
    for (u32 i = 0; i < kVec8; ++i) {
      if (i >= width) continue;
      float factor = 0.0F;
      if constexpr (kCodes) factor = p.factors[p.steps.index(tile_row, tile_col, row, col + i)];
      take<Out>(part, x[i], static_cast<u8>(codes >> (8 * i)), factor);
    }
  };
  if constexpr (kCodes && C.transposed) {
    __shared__ TurnedCodes turned;
    load_turned(p, first_row, first_col, turned);
    __syncthreads();
    INGOT_UNROLL_BY(1)
    for (u32 row = threadIdx.x / Launch::kThreadsPerRow; row < rows; row += Launch::kRowsPerStep) {
      u64 codes = 0;
      INGOT_UNROLL
      for (u32 i = 0; i < kVec8; ++i) codes |= u64{i < width ? turned.codes[col + i][row] : u8{0}} << (8 * i);
      take_row(row, codes);
    }
  } else {
    INGOT_UNROLL_BY(1)
    for (u32 row = threadIdx.x / Launch::kThreadsPerRow; row < rows; row += Launch::kRowsPerStep) {
      u64 codes = 0;
      if constexpr (kCodes) {
        codes = load_codes(p.codes + (first_row + row) * p.codes_stride + first_col + col, width, codes_vectorised);
      }
      take_row(row, codes);
    }
  }
  parts[threadIdx.x] = part;
  merge_block(parts);
  if (threadIdx.x == 0) p.parts[blockIdx.x] = parts[0];
}

// Launched as one block.
INGOT_KERNEL void INGOT_LAUNCH_BOUNDS(CastStatsLaunch::kThreads, 1) cast_stats_finish(const CastStatsFinishParams p) {
  __shared__ CastStatsPart parts[CastStatsLaunch::kThreads];
  start_in_turn();
  CastStatsPart part = no_stats();
  INGOT_UNROLL_BY(1)
  for (i64 i = threadIdx.x; i < p.count; i += CastStatsLaunch::kThreads) merge(part, p.parts[i]);
  parts[threadIdx.x] = part;
  merge_block(parts);
  if (threadIdx.x == 0) *p.result = result_of(parts[0]);
}

}  // namespace ingot
