// How a thread of cast_tiles.cuh gets the 8 x 8 values that it holds of a tile: by vectors where rows allow it, element
// by element where they start anywhere. And how a tile is prefetched.
#pragma once

#include "cast/cast_tile_shared.cuh"
#include "cast/source.cuh"
#include "memory.cuh"
#include "platform.cuh"
#include "vec8.cuh"

namespace ingot {

// Loads the thread's 8 x 8 values. Elements outside the matrix are 0, which changes no maximum and no sum. ByHalves: as
// load_vec8s().
template <class Source, bool ByHalves = false>
INGOT_DEVICE void load_tile(const SourceParams& p, const TilePosition& at, CastTilesShared& shared,
                            Vec8<typename Source::Value> (&values)[kRowsPerRun]) {
  using Value = typename Source::Value;
  if (Source::aligned(p) && (at.cols == CastTilesLaunch::kTile || p.cols % kVec8 == 0)) {
    load_vec8s<Source, true, ByHalves>(p, Source::pointers_at(p, at.first_row + at.row, at.first_col + at.col), values,
                                       [&](u32 r) -> Vec8Offset {
                                         return {r, 0, at.row + r < at.rows && at.col < at.cols};
                                       });
    return;
  }
  // Loads 32 rows at a time: shared memory has room for that many rows of f32.
  constexpr u32 kSlab = 32;
  auto* const slab = reinterpret_cast<Value*>(shared.bytes);
  INGOT_UNROLL_BY(1)
  for (u32 first = 0; first < at.rows; first += kSlab) {
    __syncthreads();
    INGOT_UNROLL_BY(1)
    for (u32 i = threadIdx.x; i < kSlab * 128; i += CastTilesLaunch::kThreads) {
      const u32 row = first + i / 128;
      const u32 col = i % 128;
      slab[i] = row < at.rows && col < at.cols ? Source::element(p, at.first_row + row, at.first_col + col) : Value{};
    }
    __syncthreads();
    if (at.row / kSlab != first / kSlab) continue;
    INGOT_UNROLL
    for (u32 r = 0; r < kRowsPerRun; ++r) {
      const Value* const source = slab + (at.row % kSlab + r) * 128 + at.col;
      INGOT_UNROLL
      for (u32 v = 0; v < Vec8<Value>::kVectors; ++v) {
        values[r].vectors[v].bits = *reinterpret_cast<const U32x4*>(source + v * kPerVector<Value>);
      }
    }
  }
  __syncthreads();
}

// Loads the values by vectors, Batch rows at a time. Those of a tile entirely inside the matrix take no comparison
// and no zeros; if Skips, idle threads then leave the zeros that the caller has put there. All threads of the block
// call it.
template <class Source, u32 Batch, bool Skips>
INGOT_DEVICE void load_tile_vec8s(const SourceParams& p, const TilePosition& at, const typename Source::Pointers& from,
                                  Vec8<typename Source::Value> (&values)[kRowsPerRun]) {
  constexpr u32 kBatch = min_of(kRowsPerRun, Batch);
  const bool whole = at.whole();
  if (Skips && whole && at.idle()) return;
  const auto is_inside = [&](u32 r) { return at.row + r < at.rows && at.col < at.cols; };
  typename Source::RawColumns columns{};
  if (is_inside(0)) columns = Source::fetch_columns(from, 0);
  typename Source::Pointers row = from;
  INGOT_UNROLL
  for (u32 first = 0; first < kRowsPerRun; first += kBatch) {
    typename Source::Raw raw[kBatch] = {};
    if (whole) {
      INGOT_UNROLL
      for (u32 r = 0; r < kBatch; ++r, Source::step_down(p, row)) raw[r] = Source::fetch(p, row, 0, 0);
    } else {
      INGOT_UNROLL
      for (u32 r = 0; r < kBatch; ++r) {
        if (is_inside(first + r)) raw[r] = Source::fetch(p, from, first + r, 0);
      }
    }
    INGOT_UNROLL
    for (u32 r = 0; r < kBatch; ++r) values[first + r] = Source::values(raw[r], columns);
    if (!Source::kFused || whole) continue;
    __syncthreads();  // so that the compiler keeps the branch, and no whole tile has a select for each word
    INGOT_UNROLL
    for (u32 r = 0; r < kBatch; ++r) {
      if (!is_inside(first + r)) values[first + r] = {};
    }
  }
}

// Loads the thread's values as load_tile() does, if rows may start anywhere; Batch rows at a time where whole vectors
// can be read. No load waits for another, as in load_tile()'s loop over slabs.
template <class Source, u32 Batch, bool Skips>
INGOT_DEVICE void load_tile_anywhere(const SourceParams& p, const TilePosition& at,
                                     Vec8<typename Source::Value> (&values)[kRowsPerRun]) {
  const typename Source::Pointers from = Source::pointers_at(p, at.first_row + at.row, at.first_col + at.col);
  if (Source::aligned(p) && (at.cols == CastTilesLaunch::kTile || p.cols % kVec8 == 0)) {
    if constexpr (kDeviceArch >= 1000 && Source::kFused && Source::kColumns > 0) {  // where ptxas has no registers left
      load_vec8s<Source, true>(p, from, values, [&](u32 r) -> Vec8Offset {
        return {r, 0, at.row + r < at.rows && at.col < at.cols};
      });
    } else {
      load_tile_vec8s<Source, Batch, Skips>(p, at, from, values);
    }
    return;
  }
  constexpr u32 kBatch = min_of(kRowsPerRun, max_of(1U, vec8s_in_flight<Source>(Source::kMatrices) / 4));
  const u32 width = at.width();
  typename Source::RawColumns columns = Source::fetch_column_elements(from, width);
  // The compiler would keep each element of two columns in a register, and sm_90 has none left for three blocks.
  constexpr bool kTwoColumns = Source::kMatrices == 1 && Source::kColumns > 0 && Source::kColumns + Source::kRows == 2;
  if constexpr (kDeviceArch == 900 && kTwoColumns && sizeof(typename Source::In) == 2) Source::forget_columns(columns);
  INGOT_UNROLL
  for (u32 first = 0; first < kRowsPerRun; first += kBatch) {
    typename Source::Raw raw[kBatch];
    INGOT_UNROLL
    for (u32 r = 0; r < kBatch; ++r) {
      raw[r] = Source::fetch_elements(p, from, first + r, at.row + first + r < at.rows ? width : 0);
    }
    INGOT_UNROLL
    for (u32 r = 0; r < kBatch; ++r) {
      values[first + r] = Source::values(raw[r], columns);
      if constexpr (!Source::kFused) continue;
      values[first + r] = first_elements(values[first + r], at.row + first + r < at.rows ? width : 0);
    }
  }
}

// Prefetches the tile, with one request per 128-byte line.
template <class Source>
INGOT_DEVICE void prefetch_tile(const SourceParams& p, const TilePosition& at) {
  constexpr u32 kLine = 128 / sizeof(typename Source::In);
  if (at.col % kLine != 0 || at.col >= at.cols) return;
  const typename Source::Pointers from = Source::pointers_at(p, at.first_row + at.row, at.first_col + at.col);
  INGOT_UNROLL
  for (u32 r = 0; r < kRowsPerRun; ++r) {
    if (at.row + r < at.rows) Source::prefetch(p, from, r);
  }
}

// The same, with one request to a thread, or two for f32.
template <class Source>
INGOT_DEVICE void prefetch_tile_by_line(const SourceParams& p, const TilePosition& at) {
  constexpr u32 kLine = 128 / sizeof(typename Source::In);
  constexpr u32 kTile = static_cast<u32>(CastTilesLaunch::kTile);
  constexpr u32 kLinesPerRow = kTile / kLine;
  INGOT_UNROLL
  for (u32 first = 0; first < kTile * kLinesPerRow; first += CastTilesLaunch::kThreads) {
    const u32 row = (first + threadIdx.x) / kLinesPerRow;
    const u32 col = threadIdx.x % kLinesPerRow * kLine;
    if (row >= at.rows || col >= at.cols) continue;
    Source::prefetch(p, Source::pointers_at(p, at.first_row + row, at.first_col + col), 0);
  }
}

// For all rows of a thread.
template <HighPrecision Value>
INGOT_DEVICE void forget_values(Vec8<Value> (&values)[kRowsPerRun]) {
  INGOT_UNROLL
  for (Vec8<Value>& row : values) forget_values(row);
}

}  // namespace ingot
