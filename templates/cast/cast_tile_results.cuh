// What a cast in tiles writes in addition to codes: on demand the values themselves, and the sums of their columns.
#pragma once

#include "cast/cast_tile_shared.cuh"
#include "memory.cuh"
#include "platform.cuh"
#include "vec8.cuh"

namespace ingot {

template <HighPrecision In, HighPrecision Value>
INGOT_DEVICE void store_result(const CastTilesParams& p, const TilePosition& at,
                               const Vec8<Value> (&values)[kRowsPerRun]) {
  In* const target = static_cast<In*>(p.result) + (at.first_row + at.row) * p.result_stride + at.first_col + at.col;
  const u32 width = at.width();
  const bool vectorised = vector_aligned<In>(p.result, p.result_stride);
  INGOT_UNROLL
  for (u32 r = 0; r < kRowsPerRun; ++r) {
    if (at.row + r >= at.rows) break;
    if (vectorised && width == kVec8) {
      store_vec8<In>(target + r * p.result_stride, values[r]);
    } else {
      float x[kVec8];
      unpack(values[r], x);
      INGOT_UNROLL
      for (u32 c = 0; c < kVec8; ++c) {
        if (c < width) target[r * p.result_stride + c] = from_float<In>(x[c]);
      }
    }
  }
}

// Adds a row's values to the sums of the thread's columns.
template <HighPrecision Value>
INGOT_DEVICE void add_row(const Vec8<Value>& values, float (&sums)[kVec8]) {
  float x[kVec8];
  unpack(values, x);
  INGOT_UNROLL
  for (u32 c = 0; c < kVec8; ++c) sums[c] = sums[c] + x[c];
}

// The sums of a tile's runs, [16][128].
struct RunSums {
  static constexpr u32 kCount = 128 / kRowsPerRun * 128;
  float* sums;

  // In separate shared memory, if Needed.
  template <bool Needed>
  INGOT_DEVICE static RunSums apart() {
    if constexpr (Needed) {
      alignas(16) __shared__ float mine[kCount];
      return {mine};
    } else {
      return {nullptr};
    }
  }
  INGOT_DEVICE void put(const TilePosition& at, const float (&mine)[kVec8]) const {
    float* const target = sums + at.row / kRowsPerRun * 128 + at.col;
    INGOT_UNROLL
    for (u32 v = 0; v < 2; ++v) {
      *reinterpret_cast<U32x4*>(target + 4 * v) = {float_bits(mine[4 * v]), float_bits(mine[4 * v + 1]),
                                                   float_bits(mine[4 * v + 2]), float_bits(mine[4 * v + 3])};
    }
  }
  // Writes their totals to partial_sums, after a barrier.
  INGOT_DEVICE void store_totals(const CastTilesParams& p, const TilePosition& at) const {
    if (threadIdx.x >= at.cols || at.rows == 0) return;
    float total = 0.0F;
    INGOT_UNROLL
    for (u32 run = 0; run < 128 / kRowsPerRun; ++run) total = total + sums[run * 128 + threadIdx.x];
    p.partial_sums[at.first_row / CastTilesLaunch::kTile * p.source.cols + at.first_col + threadIdx.x] = total;
  }
};

// Writes the sums of the tile's columns to partial_sums.
template <HighPrecision Value>
INGOT_DEVICE void sum_columns(const CastTilesParams& p, const TilePosition& at, CastTilesShared& shared,
                              const Vec8<Value> (&values)[kRowsPerRun]) {
  float sums[kVec8] = {};
  INGOT_UNROLL
  for (u32 r = 0; r < kRowsPerRun; ++r) add_row(values[r], sums);
  const RunSums runs{reinterpret_cast<float*>(shared.bytes)};
  runs.put(at, sums);
  __syncthreads();
  runs.store_totals(p, at);
  __syncthreads();
}

}  // namespace ingot
