// The cast to FP8 in tiles: codes[r, c] = encode(saturate(value[r, c] * scale)) and the same transposed, each with its
// own scales or both with the same; factors = 1 / scale; on demand the values themselves and their column sums.
//
// It reads each input byte once and writes each output byte once. Scales of whole rows, columns or the tensor come from
// an earlier pass (amax.cuh, cast_rows.cuh) or from the caller; scales of groups and blocks are computed from the tile
// itself. With given scales, the kernel records the maxima from which they should have been computed.
//
// A block takes a tile of 128 x 128, the last tile first, because the L2 still holds what the earlier pass read last. A
// thread holds 8 rows x 8 columns in registers, encodes them and stores the codes 8 bytes at a time. It transposes
// bytes in registers and puts 8 bytes of each of its columns in shared memory, from where the transposed tile is stored
// 16 bytes at a time. Codes are stored with a streaming hint, because the input makes better use of the L2. A tile
// whose rows cannot be read 16 bytes at a time is loaded through shared memory, element by element; threads skip what
// lies past the matrix's edges.
//
// Kernels with CastConfig::unaligned are for matrices whose rows, or whose transposed rows, do not start at multiples
// of 16 bytes. They load such rows element by element into registers, all of a batch at once, and store transposed rows
// wherever they start (staged_columns.cuh). A tile that lies whole inside the matrix takes fewer instructions there,
// and most tiles fewer barriers. cast_whole is such a kernel for every pitch.
#pragma once

#include "cast/amax.cuh"
#include "cast/cast_output.cuh"
#include "cast/cast_tile_shared.cuh"
#include "cast/source.cuh"
#include "cast/staged_columns.cuh"
#include "memory.cuh"
#include "platform.cuh"
#include "reduce.cuh"
#include "scaling.cuh"
#include "vec8.cuh"

namespace ingot {

struct CastTilesParams {
  SourceParams source;
  CastOutput codes, transposed;  // if both have the same scales, those of `codes` count
  void* result;                  // In[rows, cols], if Result
  i64 result_stride;             // elements
  float* partial_sums;           // [ceil(rows / 128), cols], if Sum
  bool pow2;
  u32 tiles_per_block = 1;  // CastTilesLaunch::tiles_per_block(), if the kernel takes_two()
};

// Transposes 4 x 4 bytes: byte c of rows[r] becomes byte r of columns[c].
INGOT_DEVICE void transpose_bytes(const u32 (&rows)[4], u32 (&columns)[4]) {
  const u32 low01 = __byte_perm(rows[0], rows[1], 0x5140);   // a0 b0 a1 b1
  const u32 low23 = __byte_perm(rows[2], rows[3], 0x5140);   // c0 d0 c1 d1
  const u32 high01 = __byte_perm(rows[0], rows[1], 0x7362);  // a2 b2 a3 b3
  const u32 high23 = __byte_perm(rows[2], rows[3], 0x7362);  // c2 d2 c3 d3
  columns[0] = __byte_perm(low01, low23, 0x5410);
  columns[1] = __byte_perm(low01, low23, 0x7632);
  columns[2] = __byte_perm(high01, high23, 0x5410);
  columns[3] = __byte_perm(high01, high23, 0x7632);
}

// ---- 1. Values ---------------------------------------------------------------------------------------------------

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

// Loads the values by vectors, Batch rows at a time. Those of a tile that lies whole in the matrix take no comparison
// and no zeros. All threads of the block call it.
template <class Source, u32 Batch>
INGOT_DEVICE void load_tile_vec8s(const SourceParams& p, const TilePosition& at, const typename Source::Pointers& from,
                                  Vec8<typename Source::Value> (&values)[kRowsPerRun]) {
  constexpr u32 kBatch = min_of(kRowsPerRun, Batch);
  const bool whole = at.whole();
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
template <class Source, u32 Batch>
INGOT_DEVICE void load_tile_anywhere(const SourceParams& p, const TilePosition& at,
                                     Vec8<typename Source::Value> (&values)[kRowsPerRun]) {
  const typename Source::Pointers from = Source::pointers_at(p, at.first_row + at.row, at.first_col + at.col);
  if (Source::aligned(p) && (at.cols == CastTilesLaunch::kTile || p.cols % kVec8 == 0)) {
    if constexpr (kDeviceArch >= 1000 && Source::kFused && Source::kColumns > 0) {  // where ptxas has no registers left
      load_vec8s<Source, true>(p, from, values, [&](u32 r) -> Vec8Offset {
        return {r, 0, at.row + r < at.rows && at.col < at.cols};
      });
    } else {
      load_tile_vec8s<Source, Batch>(p, at, from, values);
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

  // In shared memory of their own, if Needed.
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

// For all rows of a thread.
template <HighPrecision Value>
INGOT_DEVICE void forget_values(Vec8<Value> (&values)[kRowsPerRun]) {
  INGOT_UNROLL
  for (Vec8<Value>& row : values) forget_values(row);
}

// ---- 2. Maxima over the tile -------------------------------------------------------------------------------------

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

// ---- 3. Scales ---------------------------------------------------------------------------------------------------

// The granularities of which a tile has one scale, one for each row, or one for each column. Any other needs branches
// of its own in all of this section.
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
  static_assert(has_tile_scales(Scale), "cast_tiles.cuh has no code for scales of this granularity");
  static constexpr bool kLocal = within_tile(Scale);
  i64 first;     // index of the tile's first extent
  i64 per_row;   // from one row's extent to the next row's (by column: 1)
  bool leading;  // does the tile write the factors?

  INGOT_DEVICE static Extents of(const SourceParams& p, const TilePosition& at) {
    const i64 tile_row = at.first_row / kGroup;
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
template <Granularity Scale, Fp8Format Out, bool Last, bool LanesAnew = false, HighPrecision Value>
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
    if (extents.leading && threadIdx.x == 0) output.factors[extents.first] = factor_from_scale(scales.values[0]);
  } else if constexpr (by_row(Scale)) {
    u32 bits = 0;
    if constexpr (kLocal) bits = row_maximum(values);
    u32 lane = threadIdx.x % 32;
    if constexpr (LanesAnew) hide(lane);
    const u32 row = at.row + RowMaxima::index_of_lane(lane);
    float scale = 0.0F;
    if (row < at.rows) {
      scale = scale_of(extents.index(row), bits);
      if (extents.leading && RowMaxima::answers(lane)) {
        *factor_at<Scale>(output, at, row, extents.index(row)) = factor_from_scale(scale);
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
      if (extents.leading) output.factors[index] = factor_from_scale(scale);
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
  const i64 down = CastTilesLaunch::tiles_along(p.rows);
  const i64 across = CastTilesLaunch::tiles_along(p.cols);
  const u32 last = static_cast<u32>((kRows ? 1 : down) * (kColumns ? 1 : across)) - 1;
  const i64 count = kRows ? at.first_row / kGroup : kColumns ? at.first_col / kGroup : 0;
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

// ---- 4. Codes ----------------------------------------------------------------------------------------------------

// Where a thread's rows of codes go.
struct CodesTarget {
  u8* first;
  i64 stride;
  u32 rows, width;  // in the matrix
  bool vectorised;

  INGOT_DEVICE static CodesTarget of(const CastOutput& output, const TilePosition& at) {
    const u32 width = at.width();
    return {static_cast<u8*>(output.codes) + (at.first_row + at.row) * output.stride + at.first_col + at.col,
            output.stride, at.rows - min_of(at.rows, at.row), width,
            rows_aligned<u8>(output.codes, output.stride, kVec8) && width == kVec8};
  }
  INGOT_DEVICE void store(u32 r, U32x2 codes) const {
    if (r >= rows) return;
    if (vectorised) {
      store_streaming(first + r * stride, codes);
    } else {
      store_bytes(first + r * stride, codes, width);
    }
  }
};

// Encodes the values into `codes`, and stores them row by row if `Store`: a row that is not used afterwards then takes
// no registers.
template <Fp8Format Out, bool Store, bool Given, Granularity Scale, HighPrecision Value>
INGOT_DEVICE void quantize_tile(const CastOutput& output, const TilePosition& at,
                                const Vec8<Value> (&values)[kRowsPerRun], const ThreadScales<Scale>& scales,
                                U32x2 (&codes)[kRowsPerRun]) {
  const CodesTarget target = CodesTarget::of(output, at);
  INGOT_UNROLL
  for (u32 r = 0; r < kRowsPerRun; ++r) {
    codes[r] = quantize<Out, Given>(values[r], [&](u32 c) { return scales.at(r, c); });
    if constexpr (Store) target.store(r, codes[r]);
  }
}

// The same without storing the codes, and with the sums of the thread's columns if Sum: the values are unpacked once
// for both.
template <Fp8Format Out, bool Given, bool Sum, Granularity Scale, HighPrecision Value>
INGOT_DEVICE void quantize_rows(const Vec8<Value> (&values)[kRowsPerRun], const ThreadScales<Scale>& scales,
                                U32x2 (&codes)[kRowsPerRun], float (&sums)[kVec8]) {
  INGOT_UNROLL
  for (u32 r = 0; r < kRowsPerRun; ++r) {
    codes[r] = quantize<Out, Given>(values[r], [&](u32 c) { return scales.at(r, c); });
    if constexpr (Sum) add_row(values[r], sums);
  }
}
// Likewise, where `largest` is the thread's maximum. Given scales let no Inf become a number; a thread that has none,
// as nearly all, need not look at each of its elements.
template <Fp8Format Out, bool Given, bool Sum, Granularity Scale, HighPrecision Value>
INGOT_DEVICE void quantize_and_sum(const Vec8<Value> (&values)[kRowsPerRun], u32 largest,
                                   const ThreadScales<Scale>& scales, U32x2 (&codes)[kRowsPerRun],
                                   float (&sums)[kVec8]) {
  if constexpr (Given && (kDeviceArch == 0 || has_hardware_encode<Out>())) {  // elsewhere encoding is long
    u32 signs = 0;
    INGOT_UNROLL
    for (const float scale : scales.values) signs |= float_bits(scale);
    // With a scale below zero, 0 * scale is -0, of which the look at each element makes 0.
    if (largest < kF32Inf && signs >> 31 == 0) {
      return quantize_rows<Out, false, Sum>(values, scales, codes, sums);
    }
  }
  quantize_rows<Out, Given, Sum>(values, scales, codes, sums);
}
INGOT_DEVICE void store_codes(const CastOutput& output, const TilePosition& at, const U32x2 (&codes)[kRowsPerRun]) {
  CodesTarget target = CodesTarget::of(output, at);
  if (at.whole() && rows_aligned<u8>(output.codes, output.stride, kVec8)) {
    u8* to = target.first;
    INGOT_UNROLL
    for (u32 r = 0; r < kRowsPerRun; ++r, to += target.stride) {
      hide(to);
      store_streaming(to, codes[r]);
    }
  } else {
    hide(target.rows);  // no comparison for this side comes before the branch
    hide(target.width);
    target.vectorised = target.vectorised && target.width == kVec8;
    INGOT_UNROLL
    for (u32 r = 0; r < kRowsPerRun; ++r) target.store(r, codes[r]);
  }
}

// Transposes the thread's codes into the staged tile. All threads of the block call it.
template <bool Unaligned>
INGOT_DEVICE void stage_transposed(const TilePosition& at, const U32x2 (&codes)[kRowsPerRun], CastTilesShared& shared) {
  [[maybe_unused]] const u32 first = StagedTile::half_slot(at.col, at.row / kRowsPerRun);
  INGOT_UNROLL
  for (u32 side = 0; side < 2; ++side) {
    u32 rows[2][4];
    u32 columns[2][4];
    INGOT_UNROLL
    for (u32 r = 0; r < kRowsPerRun; ++r) rows[r / 4][r % 4] = side == 0 ? codes[r].x : codes[r].y;
    transpose_bytes(rows[0], columns[0]);
    transpose_bytes(rows[1], columns[1]);
    INGOT_UNROLL
    for (u32 c = 0; c < 4; ++c) {
      const u32 col = side * 4 + c;
      // All eight columns are swizzled alike.
      u8* const target = shared.bytes + (Unaligned ? first + col * StagedTile::kColumnBytes
                                                   : StagedTile::half_slot(at.col + col, at.row / kRowsPerRun));
      *reinterpret_cast<U32x2*>(target) = U32x2{columns[0][c], columns[1][c]};
    }
  }
  __syncthreads();
}

INGOT_DEVICE void store_transposed(const CastOutput& output, const TilePosition& at, const U32x2 (&codes)[kRowsPerRun],
                                   CastTilesShared& shared) {
  stage_transposed<false>(at, codes, shared);
  constexpr u32 kSlots = 128 / 16;
  const u32 slot = threadIdx.x % kSlots;
  u8* const target = static_cast<u8*>(output.codes) + at.first_col * output.stride + at.first_row + slot * 16;
  const bool whole = rows_aligned<u8>(output.codes, output.stride, 16) && slot * 16 + 16 <= at.rows;
  INGOT_UNROLL
  for (u32 first = 0; first < 128; first += CastTilesLaunch::kThreads / kSlots) {
    const u32 col = first + threadIdx.x / kSlots;
    if (col >= at.cols) break;
    U32x4 bytes = *reinterpret_cast<const U32x4*>(shared.bytes + StagedTile::slot(col, slot));
    if (first >= 64) bytes = {bytes.z, bytes.w, bytes.x, bytes.y};
    u8* const column = target + col * output.stride;
    if (whole) {
      store_streaming(column, bytes);
    } else if (slot * 16 < at.rows) {
      const u32 left = at.rows - slot * 16;
      store_bytes(column, {bytes.x, bytes.y}, min_of(left, 8U));
      if (left > 8) store_bytes(column + 8, {bytes.z, bytes.w}, min_of(left - 8, 8U));
    }
  }
}

// ---- The kernel --------------------------------------------------------------------------------------------------

// For a cast that waits for no other block: its scales come from an earlier pass, or it needs none.
struct NoMeeting {};

// An `unaligned` kernel of two matrices that knows its scale before its values: on sm_90 it has room for three blocks
// per SM if it fetches the matrices by halves. (Host tests take the same way.)
template <class Source, Fp8Format Out, CastConfig C>
INGOT_HOST_DEVICE constexpr bool fetches_by_halves() {
  constexpr bool kTwoMatrices = Source::kFused && Source::kMatrices == 2 && Source::kColumns + Source::kRows == 0;
  constexpr bool kFits = sizeof(typename Source::Value) == 2 && !has_two_scales(C) && !C.result &&
                         !within_tile(C.codes.written ? C.codes.scale : C.transposed.scale);
  return C.unaligned && kTwoMatrices && kFits &&
         (kDeviceArch == 0 || (kDeviceArch == 900 && has_hardware_encode<Out>()));
}

// Blocks per SM, as registers allow without a spill (tests/templates/test_compile_matrix.cpp): 80, 128 or 255 per
// thread. Second scales, given scales, more outputs of the values and an expression all take registers. (Four blocks,
// with 64 registers, would fit most casts but are no faster.)
template <class Source, Fp8Format Out, CastConfig C>
INGOT_HOST_DEVICE constexpr u32 cast_tiles_residency() {
  constexpr bool kTwo = has_two_scales(C);
  constexpr bool kMoreOutputs = C.result || C.sum;
  constexpr bool kWide = sizeof(typename Source::Value) == 4;
  constexpr bool kBlackwell = kDeviceArch >= 1000;
  if (kTwo && (!has_hardware_encode<Out>() || (Source::kFused && (kWide || Source::kColumns > 0)) ||
               ((C.given_scales || kMoreOutputs) && (kWide || kBlackwell)))) {
    return 1;
  }
  constexpr bool kSeveral = Source::kMatrices > 1;
  constexpr bool kMany = Source::kMatrices > 2 || (kWide && kSeveral);
  if (Source::kFused && (kMany || (kMoreOutputs && kBlackwell && (kWide || kSeveral || Source::kMany)))) return 1;
  // On sm_120, ptxas cannot fit these into 128 registers.
  constexpr bool kMore = Source::kRows > 0 || !has_hardware_encode<Out>();
  if (kDeviceArch >= 1200 && Source::kFused && kSeveral && kMore) return 1;
  if (fetches_by_halves<Source, Out, C>()) return 3;
  if (kWide || kMoreOutputs || !has_hardware_encode<Out>()) return 2;
  if (Source::kFused) return kTwo || Source::kMatrices > 1 || (C.unaligned && kDeviceArch >= 1200) ? 2 : 3;
  // On sm_89, maxima of rows take more registers (max_u16x2()) than four blocks have beside given scales.
  constexpr bool kRowMaxima = C.given_scales && C.transposed.written && by_row(C.transposed.scale);
  if (!kTwo) return C.unaligned && !(kDeviceArch < 900 && kRowMaxima) ? 4 : 3;
  return kDeviceArch == 900 && by_row(C.codes.scale) && by_column(C.transposed.scale) && !C.given_scales ? 3 : 2;
}

// Casts one tile; all threads of the block call it. After an earlier pass, but only then, the elements may be read
// before that pass has ended, because it waited for whoever wrote them. With a Meeting, the tiles themselves are that
// pass: each raises the maxima, reports to the meeting, and waits for the others. If not kStores, the transposed codes
// of an `unaligned` kernel stay staged in shared.bytes.
template <class Source, Fp8Format Out, CastConfig C, class Meeting = NoMeeting, bool kStores = true>
INGOT_DEVICE void cast_tile(const CastTilesParams& p, u32 tile, CastTilesShared& shared,
                            [[maybe_unused]] Meeting meeting = {}) {
  using Value = typename Source::Value;
  static_assert(has_cast_scales(C), "cast_tile() has no scales of such a granularity");
  constexpr bool kCodes = C.codes.written;
  constexpr bool kTransposed = C.transposed.written;
  constexpr bool kTwo = has_two_scales(C);
  constexpr bool kGiven = C.given_scales;
  constexpr bool kAfterPass = !kGiven && (from_pass(C.codes) || from_pass(C.transposed));
  constexpr bool kMeets = !is_same<Meeting, NoMeeting>;
  constexpr CastOutputConfig kOutput = kCodes ? C.codes : C.transposed;
  constexpr Granularity kScale = kOutput.scale;
  constexpr Granularity kTransposedScale = C.transposed.scale;
  // What blocks that take two tiles compute anew, because ptxas has no registers left to keep it: lanes of other
  // threads, from one tile to the next; and the tile's place, until the end.
  constexpr u32 kResidency = kStores ? 0 : cast_tiles_residency<Source, Out, C>();
  constexpr bool kLanesAnew =
      kResidency == 2 && C.sum && !C.result && is_rowwise(kScale) && is_tensorwise(kTransposedScale);
  constexpr bool kPlaceAnew = kResidency == 4 && kDeviceArch < 1000 && kCodes && kScale == Granularity{128, 128};
  const CastOutput& output = kCodes ? p.codes : p.transposed;
  const TilePosition at = TilePosition::of(p.source, tile);
  Vec8<Value> values[kRowsPerRun] = {};
  const auto load = [&] {
    if constexpr (C.unaligned) {
      constexpr bool kHalves = fetches_by_halves<Source, Out, C>() && !kMeets;
      constexpr u32 kInFlight = vec8s_in_flight<Source>(Source::kMatrices);
      load_tile_anywhere<Source, kHalves ? kRowsPerRun / 2 : kInFlight>(p.source, at, values);
    } else {
      load_tile<Source>(p.source, at, shared, values);
    }
  };
  if constexpr (kAfterPass && !kMeets) {
    load();
    start_in_turn();
  } else {
    if constexpr (kCodes && kTransposed && !Source::kFused) {
      C.unaligned ? prefetch_tile_by_line<Source>(p.source, at) : prefetch_tile<Source>(p.source, at);
    }
    start_in_turn();
  }
  ThreadScales<kScale> scales;
  [[maybe_unused]] ThreadScales<kTransposedScale> transposed_scales;
  if constexpr (kGiven) scales = given_scales<kScale>(output, p.source, at);
  if constexpr (kGiven && kTwo) {
    transposed_scales = given_scales<kTransposedScale>(p.transposed, p.source, at);
  }
  if constexpr (!kAfterPass || kMeets) load();
  if constexpr (kMeets) {
    if constexpr (from_pass(kOutput)) record(output, p.source, at, PendingMaxima<kScale, Value>::of(values), shared);
    if constexpr (kTwo && from_pass(C.transposed)) {
      record(p.transposed, p.source, at, PendingMaxima<kTransposedScale, Value>::of(values), shared);
    }
    meeting.come();
  }
  if constexpr (C.result) store_result<typename Source::In>(p, at, values);
  // The sums and the maximum of a tile of an `unaligned` kernel meet in shared memory of their own, at the barrier that
  // comes after its transposed codes. (The sums of an expression: its blocks take one tile, so that no other tile's
  // sums are there.)
  constexpr bool kSumsApart = C.sum && C.unaligned && Source::kFused;
  static_assert(kStores || !kSumsApart, "a block's two tiles would share these sums");
  constexpr bool kMaximumApart = kGiven && C.unaligned && kTransposed && !kTwo && !by_row(kScale) && !by_column(kScale);
  if constexpr (C.sum && !kSumsApart) sum_columns(p, at, shared, values);
  if constexpr (kMeets) meeting.wait();

  constexpr bool kLastScales = C.unaligned && !kTwo;
  if constexpr (!kGiven) scales = dynamic_scales<kScale, Out, kLastScales, kLanesAnew>(output, p, at, values, shared);
  [[maybe_unused]] PendingMaxima<kScale, Value> maxima;
  U32x2 codes[kRowsPerRun];
  [[maybe_unused]] u32 largest = 0;
  [[maybe_unused]] float sums[kVec8] = {};
  // The largest magnitudes of bf16 without max_u16x2() take the words that unpacking them gives: the compiler would
  // keep all of a thread's in registers from one maximum to the next.
  constexpr bool kForgets = kGiven && kDeviceArch < 900 && has_hardware_encode<Out>() && is_same<Value, bf16> &&
                            !Source::kFused && !C.result && !C.sum && by_row(kTransposedScale) &&
                            (kTwo ? !C.unaligned && kScale == Granularity{128, 1} : C.unaligned);
  // Where ptxas has no registers left for all rows' codes.
  constexpr bool kByRows = kTwo && (kDeviceArch >= 1000 || (kGiven && (C.sum || C.result)));
  if constexpr (C.unaligned) {
    if constexpr (kGiven && !kByRows) largest = thread_maximum_of_words(values);
    if constexpr (kForgets && !kTwo) forget_values(values);
    if constexpr (kGiven && !kMaximumApart) maxima = PendingMaxima<kScale, Value>::of(values);
    if constexpr (kByRows) {
      quantize_tile<Out, kCodes, kGiven>(p.codes, at, values, scales, codes);
      INGOT_UNROLL
      for (u32 r = 0; kSumsApart && r < kRowsPerRun; ++r) add_row(values[r], sums);
    } else {
      quantize_and_sum<Out, kGiven, kSumsApart>(values, largest, scales, codes, sums);
      if constexpr (kCodes) store_codes(p.codes, at, codes);
    }
  } else {
    if constexpr (kGiven) maxima = PendingMaxima<kScale, Value>::of(values);
    quantize_tile<Out, kCodes, kGiven>(p.codes, at, values, scales, codes);
  }
  if constexpr (kGiven && !kMaximumApart) record(output, p.source, at, maxima, shared);
  if constexpr (kTwo) {
    if constexpr (kForgets) forget_values(values);
    if constexpr (kGiven) {
      record(p.transposed, p.source, at, PendingMaxima<kTransposedScale, Value>::of(values), shared);
    } else {
      transposed_scales = dynamic_scales<kTransposedScale, Out, C.unaligned>(p.transposed, p, at, values, shared);
    }
    if constexpr (C.unaligned && !(kByRows && kGiven)) {
      [[maybe_unused]] float no_sums[kVec8];
      quantize_and_sum<Out, kGiven, false>(values, largest, transposed_scales, codes, no_sums);
    } else {
      quantize_tile<Out, false, kGiven>(p.transposed, at, values, transposed_scales, codes);
    }
  }
  // Warp 0 clears the maxima of the first scales, warp 1 those of the second.
  constexpr bool kFirstRead = kAfterPass && from_pass(kOutput);
  constexpr bool kSecondRead = kAfterPass && kTwo && from_pass(C.transposed);
  [[maybe_unused]] bool last = false;
  if ((kFirstRead && output.readers != nullptr) || (kSecondRead && p.transposed.readers != nullptr)) {
    __syncthreads();
    if constexpr (kFirstRead) {
      if (threadIdx.x == 0) last = is_last_reader<kScale>(output, p.source, at);
    }
    if constexpr (kSecondRead) {
      if (threadIdx.x == 32) last = is_last_reader<kTransposedScale>(p.transposed, p.source, at);
    }
  }
  if constexpr (kMaximumApart) put_warp_maximum(largest, shared);
  [[maybe_unused]] const RunSums runs = RunSums::apart<kSumsApart>();
  if constexpr (kSumsApart) runs.put(at, sums);
  if constexpr (kTransposed && C.unaligned) stage_transposed<true>(at, codes, shared);
  if constexpr (kSumsApart) {
    if constexpr (!kTransposed) __syncthreads();
    runs.store_totals(p, at);
  }
  if constexpr (kMaximumApart && kPlaceAnew) {
    u32 same_tile = tile;
    hide(same_tile);
    record_warp_maxima<kScale>(output, p.source, TilePosition::of(p.source, same_tile), shared);
  } else if constexpr (kMaximumApart) {
    record_warp_maxima<kScale>(output, p.source, at, shared);
  }
  if constexpr (kTransposed && C.unaligned) {
    if constexpr (kStores) StagedColumns::of(p.transposed, at, at.rows, &shared).store();
  }
  if constexpr (kTransposed && !C.unaligned) store_transposed(p.transposed, at, codes, shared);
  if constexpr (kFirstRead) {
    if (threadIdx.x / 32 == 0) clear_if_last<kScale>(output, p.source, at, last);
  }
  if constexpr (kSecondRead) {
    if (threadIdx.x / 32 == 1) clear_if_last<kTransposedScale>(p.transposed, p.source, at, last);
  }
}

template <class Source, Fp8Format Out, CastConfig C>
INGOT_KERNEL void INGOT_LAUNCH_BOUNDS(CastTilesLaunch::kThreads, (cast_tiles_residency<Source, Out, C>()))
    cast_tiles(const __grid_constant__ CastTilesParams p) {
  const u32 block = gridDim.x - 1 - blockIdx.x;
  if constexpr (CastTilesLaunch::takes_two(Source::kFused, C.unaligned && C.transposed.written)) {
    __shared__ CastTilesShared shared[CastTilesLaunch::kMaxTilesPerBlock];
    const u32 across = static_cast<u32>(CastTilesLaunch::tiles_along(p.source.cols));
    u32 first = block / across * p.tiles_per_block * across + block % across;
    TilePosition at = TilePosition::of(p.source, first);
    const u32 rows = static_cast<u32>(min_of(CastTilesLaunch::kTile * p.tiles_per_block, p.source.rows - at.first_row));
    INGOT_UNROLL_BY(1)
    for (u32 i = 0; i < p.tiles_per_block && (i == 0 || rows > CastTilesLaunch::kTile); ++i) {
      cast_tile<Source, Out, C, NoMeeting, false>(p, first + i * across, shared[i]);
    }
    // Where ptxas has no registers left to keep the first tile's place, it is computed anew.
    constexpr bool kScalesOfColumns = is_columnwise(C.codes.scale) && is_columnwise(C.transposed.scale);
    constexpr bool kTight = kScalesOfColumns && C.codes.written && !C.given_scales && !C.result && !C.sum;
    if constexpr (kDeviceArch == 900 && kTight && is_same<typename Source::Value, bf16> && has_hardware_encode<Out>()) {
      hide(first);
      at = TilePosition::of(p.source, first);
    }
    StagedColumns::of(p.transposed, at, rows, shared).store();
  } else {
    __shared__ CastTilesShared shared;
    cast_tile<Source, Out, C>(p, block, shared);
  }
}

}  // namespace ingot
