// The scales of a tile: the maxima of its values, the scales that follow from them, from an earlier pass or from the
// caller, the factors, and the maxima that a cast records for the next one.
#pragma once

#include "cast/cast_output.cuh"
#include "cast/cast_tile_shared.cuh"
#include "cast/source.cuh"
#include "granularity.cuh"
#include "memory.cuh"
#include "platform.cuh"
#include "reduce.cuh"
#include "scaling.cuh"
#include "vec8.cuh"

namespace ingot {

// ---- Maxima over the tile ----------------------------------------------------------------------------------------

template <HighPrecision Value>
INGOT_DEVICE u32 thread_maximum(const Vec8<Value> (&values)[kRowsPerRun]) {
  u32 maximum = 0;
  INGOT_UNROLL
  for (u32 r = 0; r < kRowsPerRun; ++r) maximum = max_of(maximum, amax_bits(values[r]));
  return maximum;
}

template <HighPrecision Value>
INGOT_DEVICE u32 block_maximum(const Vec8<Value> (&values)[kRowsPerRun], CastTilesShared& shared) {
  return group_max(thread_maximum(values), CastTilesLaunch::kThreads, shared.warp_maxima);
}

// thread_maximum() in fewer instructions.
template <HighPrecision Value>
INGOT_DEVICE u32 thread_maximum_of_words(const Vec8<Value> (&values)[kRowsPerRun]) {
  Vec8sMaximum<Value> maximum;
  INGOT_UNROLL
  for (u32 r = 0; r < kRowsPerRun; ++r) maximum.take(values[r]);
  return maximum.bits();
}

// The 16 threads that together hold 8 rows end with one row's maximum each.
using RowMaxima = SharedMaxima<kRowsPerRun>;

template <HighPrecision Value>
INGOT_DEVICE u32 row_maximum(const Vec8<Value> (&values)[kRowsPerRun]) {
  u32 maxima[kRowsPerRun];
  INGOT_UNROLL
  for (u32 r = 0; r < kRowsPerRun; ++r) maxima[r] = amax_bits(values[r]);
  return RowMaxima::of(maxima);
}

// The maximum of column threadIdx.x of the tile; 0 for threads 128 and up. Last: shared.bytes is not free again before
// the block's next barrier.
template <bool Last = false, HighPrecision Value>
INGOT_DEVICE u32 column_maximum(const ColumnMaxima<Value>& maxima, const TilePosition& at, CastTilesShared& shared) {
  auto* const runs = reinterpret_cast<u32*>(shared.bytes);  // [16][128]
  u32* const mine = runs + at.row / kRowsPerRun * 128 + at.col;
  INGOT_UNROLL
  for (u32 v = 0; v < 2; ++v) {
    *reinterpret_cast<U32x4*>(mine + 4 * v) = {maxima.bits(4 * v), maxima.bits(4 * v + 1), maxima.bits(4 * v + 2),
                                               maxima.bits(4 * v + 3)};
  }
  __syncthreads();
  u32 maximum = 0;
  if (threadIdx.x < 128) {
    INGOT_UNROLL
    for (u32 run = 0; run < 128 / kRowsPerRun; ++run) maximum = max_of(maximum, runs[run * 128 + threadIdx.x]);
  }
  if constexpr (!Last) __syncthreads();
  return maximum;
}

// ---- Scales ------------------------------------------------------------------------------------------------------

// The granularities of which a tile has one scale, one for each row, or one for each column. Any other needs its
// own branches in all of this section.
INGOT_HOST_DEVICE constexpr bool has_tile_scales(Granularity g) {
  return is_tensorwise(g) || is_rowwise(g) || is_columnwise(g) || g == Granularity{128, 128} ||
         g == Granularity{1, 128} || g == Granularity{128, 1};
}

// The scales of the thread's 8 x 8 elements.
template <Granularity Scale>
struct ThreadScales {
  static constexpr u32 kCount = by_row(Scale) || by_column(Scale) ? 8 : 1;
  float values[kCount];
  INGOT_DEVICE float at(u32 row, u32 col) const { return values[by_row(Scale) ? row : by_column(Scale) ? col : 0]; }
};

// Where the tile's extents (the elements that share a scale) are in the dense arrays, and whether this tile holds the
// first element of each.
template <Granularity Scale>
struct Extents {
  static_assert(has_tile_scales(Scale), "a tile has no code for scales of this granularity");
  static constexpr bool kLocal = within_tile(Scale);
  i64 first;     // index of the tile's first extent
  i64 per_row;   // from one row's extent to the next row's (by column: 1)
  bool leading;  // does the tile write the factors?

  INGOT_DEVICE static Extents of(const SourceParams& p, const TilePosition& at) {
    const i64 tile_row = at.tile_row();
    const i64 tile_col = at.first_col / kGroup;
    const i64 across = ceil_div(p.cols, kGroup);
    if constexpr (is_tensorwise(Scale)) return {0, 0, tile_row == 0 && tile_col == 0};
    if constexpr (is_rowwise(Scale)) return {at.first_row, 1, tile_col == 0};
    if constexpr (is_columnwise(Scale)) return {at.first_col, 1, tile_row == 0};
    if constexpr (Scale == Granularity{128, 128}) return {tile_row * across + tile_col, 0, true};
    if constexpr (Scale == Granularity{1, 128}) return {at.first_row * across + tile_col, across, true};
    if constexpr (Scale == Granularity{128, 1}) return {tile_row * p.cols + at.first_col, 1, true};
  }
  // The index for row or column `i` of the tile, if each has its own extent.
  INGOT_DEVICE i64 index(u32 i) const { return first + i * per_row; }
};

// Where the factor of extent i of the tile goes.
template <Granularity Scale>
INGOT_DEVICE float* factor_at(const CastOutput& output, const TilePosition& at, u32 i, i64 index) {
  if constexpr (Scale == Granularity{1, 128}) {
    return output.factors +
           ((at.first_row + i) * output.factor_steps.row + at.first_col / kGroup * output.factor_steps.group);
  } else {
    return output.factors + index;
  }
}

// Computes the scales from maxima, and writes the factors. All threads of the block call it. Last: the
// block computes no more scales of this tile, so that nothing here need be free again. LanesAnew: no lane stays in a
// register for the block's next tile.
template <class Source, Granularity Scale, Fp8Format Out, bool Last, bool LanesAnew = false, HighPrecision Value>
INGOT_DEVICE ThreadScales<Scale> dynamic_scales(const CastOutput& output, const CastTilesParams& p,
                                                const TilePosition& at, const Vec8<Value> (&values)[kRowsPerRun],
                                                CastTilesShared& shared) {
  constexpr bool kLocal = within_tile(Scale);
  const Extents<Scale> extents = Extents<Scale>::of(p.source, at);
  ThreadScales<Scale> scales{};
  if (kLocal && (at.rows == 0 || at.cols == 0)) return scales;  // no elements, no groups, no blocks
  // The scale of extent `index`, whose maximum comes from this tile or from the earlier pass.
  const auto scale_of = [&](i64 index, u32 bits) {
    return scale_from_amax<Out>(kLocal ? amax_from_bits(bits) : output.from[index], p.pow2);
  };
  if constexpr (!by_row(Scale) && !by_column(Scale)) {
    u32 bits = 0;
    if constexpr (kLocal && Last) {
      bits = group_max_once(thread_maximum_of_words(values), CastTilesLaunch::kThreads, shared.warp_maxima);
    } else if constexpr (kLocal) {
      bits = block_maximum(values, shared);
    } else {
      bits = maximum_of_partials(output, CastTilesLaunch::kThreads, shared.warp_maxima);
    }
    scales.values[0] = scale_from_amax<Out>(amax_from_bits(bits), p.pow2);
    if (extents.leading && threadIdx.x == 0)
      output.factors[extents.first] = factor_from_dynamic_scale(scales.values[0]);
  } else if constexpr (by_row(Scale)) {
    u32 bits = 0;
    if constexpr (kLocal) bits = row_maximum(values);
    u32 lane = threadIdx.x % 32;
    if constexpr (LanesAnew) hide(lane);
    const u32 row = at.row + RowMaxima::index_of_lane(lane);
    float scale = 0.0F;
    if (row < at.rows) {
      const i64 index = extents.index(row);
      scale = scale_of(kLocal ? index : Source::row_of(p.source, index), bits);
      if (extents.leading && RowMaxima::answers(lane)) {
        *factor_at<Scale>(output, at, row, index) = factor_from_dynamic_scale(scale);
      }
    }
    INGOT_UNROLL
    for (u32 r = 0; r < kRowsPerRun; ++r) {
      scales.values[r] =
          float_from_bits(__shfl_sync(0xffffffffU, float_bits(scale), RowMaxima::lane_of_index(lane, r)));
    }
  } else {
    u32 bits = 0;
    if constexpr (kLocal) {
      ColumnMaxima<Value> maxima;
      maxima.take(values);
      bits = column_maximum<Last>(maxima, at, shared);
    }
    if (threadIdx.x < at.cols) {
      const i64 index = extents.index(threadIdx.x);
      const float scale = scale_of(index, bits);
      if (extents.leading) output.factors[index] = factor_from_dynamic_scale(scale);
      shared.scales[threadIdx.x] = scale;
    }
    __syncthreads();
    INGOT_UNROLL
    for (u32 c = 0; c < kVec8; ++c) scales.values[c] = shared.scales[at.col + c];
    if constexpr (!Last) __syncthreads();
  }
  return scales;
}

// Loads given scales ahead of the elements, so that nothing waits for them. The first thread of each extent writes its
// factor.
template <Granularity Scale>
INGOT_DEVICE ThreadScales<Scale> given_scales(const CastOutput& output, const SourceParams& p, const TilePosition& at) {
  const Extents<Scale> extents = Extents<Scale>::of(p, at);
  ThreadScales<Scale> scales{};
  if (within_tile(Scale) && (at.rows == 0 || at.cols == 0)) return scales;
  constexpr bool kRows = by_row(Scale);
  constexpr bool kColumns = by_column(Scale);
  const u32 first = kRows ? at.row : kColumns ? at.col : 0;
  const u32 end = kRows ? at.rows : kColumns ? at.cols : 1;
  const bool leading = extents.leading && (kRows || at.row == 0) && (kColumns || at.col == 0);
  INGOT_UNROLL
  for (u32 i = 0; i < ThreadScales<Scale>::kCount; ++i) {
    if (first + i >= end) break;
    const i64 index = extents.index(first + i);
    scales.values[i] = output.from[index];
    if (leading) *factor_at<Scale>(output, at, first + i, index) = factor_from_scale(scales.values[i]);
  }
  return scales;
}

// One thread's share of the maxima from which the scales should have been computed, before other threads' shares are
// added.
template <Granularity Scale, HighPrecision Value>
struct PendingMaxima {
  ColumnMaxima<Value> columns;  // by column
  u32 bits = 0;                 // by row: for RowMaxima::index_of_lane(); otherwise for the thread's elements

  INGOT_DEVICE static PendingMaxima of(const Vec8<Value> (&values)[kRowsPerRun]) {
    PendingMaxima made;
    if constexpr (by_column(Scale)) {
      made.columns.take(values);
    } else if constexpr (by_row(Scale)) {
      made.bits = row_maximum(values);
    } else {
      made.bits = thread_maximum(values);
    }
    return made;
  }
};

// Raises the recorded maxima. All threads of the block call it.
template <Granularity Scale, HighPrecision Value>
INGOT_DEVICE void record(const CastOutput& output, const SourceParams& p, const TilePosition& at,
                         const PendingMaxima<Scale, Value>& maxima, CastTilesShared& shared) {
  const Extents<Scale> extents = Extents<Scale>::of(p, at);
  if constexpr (by_column(Scale)) {
    const u32 bits = column_maximum(maxima.columns, at, shared);
    if (threadIdx.x < at.cols && at.rows != 0) raise_maximum(output.amax + extents.index(threadIdx.x), bits);
  } else if constexpr (by_row(Scale)) {
    const u32 row = at.row + RowMaxima::index_of_lane(threadIdx.x % 32);
    if (row < at.rows && at.cols != 0 && RowMaxima::answers(threadIdx.x % 32))
      raise_maximum(output.amax + extents.index(row), maxima.bits);
  } else {
    const u32 bits = group_max(maxima.bits, CastTilesLaunch::kThreads, shared.warp_maxima);
    if (threadIdx.x == 0 && at.rows != 0 && at.cols != 0) raise_maximum(output.amax + extents.first, bits);
  }
}

// The same for one scale, in two steps with a barrier of the caller's between them.
INGOT_DEVICE void put_warp_maximum(u32 bits, CastTilesShared& shared) {
  bits = __reduce_max_sync(0xffffffffU, bits);
  if (threadIdx.x % 32 == 0) shared.warp_maxima[threadIdx.x / 32] = bits;
}
template <Granularity Scale>
INGOT_DEVICE void record_warp_maxima(const CastOutput& output, const SourceParams& p, const TilePosition& at,
                                     const CastTilesShared& shared) {
  if (threadIdx.x >= 32) return;
  constexpr u32 kWarps = CastTilesLaunch::kThreads / 32;
  const u32 bits = __reduce_max_sync(0xffffffffU, shared.warp_maxima[threadIdx.x % kWarps]);
  if (threadIdx.x == 0 && at.rows != 0 && at.cols != 0) {
    raise_maximum(output.amax + Extents<Scale>::of(p, at).first, bits);
  }
}

// Is this tile the last that reads the maxima that amax_tiles raised? The last reader sets them to zero, so that the
// next call need not clear them. Readers are counted for the tensor, for each row of tiles or for each column of tiles,
// and every counter starts over by itself.
//
// One thread of the block calls it, when all have read. The answer takes a while, and is needed only at the end.
template <Granularity Scale>
INGOT_DEVICE bool is_last_reader(const CastOutput& output, const SourceParams& p, const TilePosition& at) {
  if (output.readers == nullptr) return false;
  constexpr bool kRows = is_rowwise(Scale);
  constexpr bool kColumns = is_columnwise(Scale);
  const i64 down = CastTilesLaunch::tiles_down(p.rows, at.rows_log2);
  const i64 across = CastTilesLaunch::tiles_along(p.cols);
  const u32 last = static_cast<u32>((kRows ? 1 : down) * (kColumns ? 1 : across)) - 1;
  const i64 count = kRows ? at.tile_row() : kColumns ? at.first_col / kGroup : 0;
  __threadfence();
  return atomicInc(output.readers + count, last) == last;
}

// Sets the maxima to zero. The warp of the thread that asked calls it; `last` is the answer, in its first thread.
template <Granularity Scale>
INGOT_DEVICE void clear_if_last(const CastOutput& output, const SourceParams& p, const TilePosition& at, bool last) {
  if (__shfl_sync(0xffffffffU, last ? 1U : 0U, 0) == 0) return;
  const u32 extents = is_rowwise(Scale) ? at.rows : is_columnwise(Scale) ? at.cols : 1;
  INGOT_UNROLL_BY(1)
  for (u32 i = threadIdx.x % 32; i < extents; i += 32) output.from[Extents<Scale>::of(p, at).index(i)] = 0.0F;
}

}  // namespace ingot
