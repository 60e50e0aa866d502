// output[r, c] = value[r, c]: an expression of matrices, rows and columns, computed in f32 and rounded (source.cuh); in
// other words, the `result` of a cast, without the cast. It reads each input byte once and writes each output byte
// once, for any shape.
//
// A block takes a tile. Each thread takes 8 neighbouring columns in several rows, and issues all their loads before it
// computes the first; where rows cannot be read 8 elements at a time, threads take single elements. The output may be
// one of the inputs: the thread that writes an element has read it before, by plain loads.
#pragma once

#include "cast/source.cuh"
#include "memory.cuh"
#include "platform.cuh"
#include "vec8.cuh"
#include "vec8_tiles.cuh"

namespace ingot {

struct ElementwiseParams {
  SourceParams source;
  void* output;       // In[rows, cols]
  i64 output_stride;  // elements
  u32 across_log2;    // of Vec8Tiles
};

using ElementwiseLaunch = Vec8Tiles;

// The registers that hold what a thread has fetched of `rows` rows.
template <class Source>
INGOT_HOST_DEVICE constexpr u32 elementwise_registers(u32 rows) {
  return (rows * Source::kMatrices + Source::kColumns) * static_cast<u32>(sizeof(Vec8<typename Source::In>)) / 4;
}
// How many rows are fetched before the first is computed.
template <class Source>
INGOT_HOST_DEVICE constexpr u32 elementwise_batch() {
  constexpr u32 kRows = ElementwiseLaunch::rows(sizeof(typename Source::In));
  return elementwise_registers<Source>(kRows) <= 64 ? kRows : kRows / 2;
}
// Blocks per SM: 64, 80 or 128 registers per thread.
template <class Source>
INGOT_HOST_DEVICE constexpr u32 elementwise_residency() {
  constexpr u32 kFetched = elementwise_registers<Source>(elementwise_batch<Source>());
  return kFetched <= 16 ? 4 : kFetched <= 32 ? 3 : 2;
}

// What a kernel looks for in the values that it writes: nothing (elementwise_amax.cuh has another).
struct NoMaximum {
  template <class Values>
  INGOT_DEVICE const Values& take(const Values& written) {
    return written;
  }
};

// What a thread writes: one expression's values, from the element at (row, col) on. Elementwise kernels are the same
// but for this (elementwise_pair.cuh has another), and for the maximum.
template <class ValuesOf>
struct ElementwiseOutput {
  using Source = ValuesOf;
  using Params = ElementwiseParams;
  using In = typename Source::In;
  using Element = In;
  static constexpr u32 kOutputs = 1;

  INGOT_HOST_DEVICE static const ElementwiseParams& shared(const Params& p) { return p; }
  INGOT_HOST_DEVICE static bool aligned(const Params& p) { return vector_aligned<In>(p.output, p.output_stride); }
  INGOT_DEVICE static ElementwiseOutput at(const Params& p, i64 row, i64 col) {
    return {static_cast<In*>(p.output) + row * p.output_stride + col};
  }

  // Eight values, `rows` below.
  template <class Maximum>
  INGOT_DEVICE void store_vec8(const Params& p, u32 rows, const typename Source::Raw& raw,
                               const typename Source::RawColumns& columns, Maximum& maximum) const {
    ingot::store_vec8<In>(output + rows * p.output_stride, maximum.take(Source::values(raw, columns)));
  }
  INGOT_DEVICE static Element element(const Params& p, i64 row, i64 col) { return Source::element(p.source, row, col); }
  template <class Maximum>
  INGOT_DEVICE void store(const Element& value, Maximum& maximum) const {
    *output = maximum.take(value);
  }

  In* output;
};

// A tile whose rows can be read and written 8 elements at a time.
template <class Output, class Maximum, class Source = typename Output::Source>
INGOT_DEVICE void elementwise_vec8s(const typename Output::Params& params, i64 first_row, i64 first_col,
                                    Maximum& maximum) {
  const ElementwiseParams& p = Output::shared(params);
  constexpr u32 kRows = ElementwiseLaunch::rows(sizeof(typename Source::In));
  constexpr u32 kBatch = elementwise_batch<Source>();
  const u32 down = ElementwiseLaunch::kThreads >> p.across_log2;  // rows from one of a thread's rows to the next
  const i64 row = first_row + (threadIdx.x >> p.across_log2);
  const i64 col = first_col + i64{threadIdx.x & ((1U << p.across_log2) - 1)} * kVec8;
  const i64 rows_left = col < p.source.cols ? p.source.rows - row : 0;
  const auto is_inside = [&](u32 i) { return i64{i * down} < rows_left; };
  if (!is_inside(0)) return;
  const typename Source::Pointers at = Source::pointers_at(p.source, row, col);
  const typename Source::RawColumns columns = Source::fetch_columns(at, 0);
  const Output output = Output::at(params, row, col);
  INGOT_UNROLL
  for (u32 first = 0; first < kRows; first += kBatch) {
    typename Source::Raw raw[kBatch] = {};
    INGOT_UNROLL
    for (u32 i = 0; i < kBatch; ++i) {
      if (is_inside(first + i)) raw[i] = Source::fetch(p.source, at, (first + i) * down, 0);
    }
    INGOT_UNROLL
    for (u32 i = 0; i < kBatch; ++i) {
      if (!is_inside(first + i)) continue;
      output.store_vec8(params, (first + i) * down, raw[i], columns, maximum);
    }
  }
}

// Any other tile: neighbouring threads take neighbouring elements.
template <class Output, class Maximum>
INGOT_DEVICE void elementwise_elements(const typename Output::Params& params, i64 first_row, i64 first_col,
                                       Maximum& maximum) {
  const ElementwiseParams& p = Output::shared(params);
  using Launch = ElementwiseLaunch;
  constexpr u32 kAtOnce = 4;
  const u32 width_log2 = p.across_log2 + 3;
  constexpr u32 kElements = Launch::rows(sizeof(typename Output::In)) * Launch::kThreads * kVec8;
  INGOT_UNROLL_BY(1)
  for (u32 first = threadIdx.x; first < kElements; first += Launch::kThreads * kAtOnce) {
    const auto row_of = [&](u32 i) { return first_row + ((first + i * Launch::kThreads) >> width_log2); };
    const auto col_of = [&](u32 i) { return first_col + ((first + i * Launch::kThreads) & ((1U << width_log2) - 1)); };
    const auto is_inside = [&](u32 i) { return row_of(i) < p.source.rows && col_of(i) < p.source.cols; };
    typename Output::Element values[kAtOnce] = {};
    INGOT_UNROLL
    for (u32 i = 0; i < kAtOnce; ++i) {
      if (is_inside(i)) values[i] = Output::element(params, row_of(i), col_of(i));
    }
    INGOT_UNROLL
    for (u32 i = 0; i < kAtOnce; ++i) {
      if (is_inside(i)) Output::at(params, row_of(i), col_of(i)).store(values[i], maximum);
    }
  }
}

// Computes all tiles of the block.
template <class Output, class Maximum>
INGOT_DEVICE void elementwise_tiles(const typename Output::Params& params, Maximum& maximum) {
  const ElementwiseParams& p = Output::shared(params);
  const i64 cols = p.source.cols;
  const i64 tile_cols = Vec8Tiles::tile_cols(p.across_log2);
  const bool aligned = Output::Source::aligned(p.source) && Output::aligned(params);
  for_each_tile(p.source.rows, sizeof(typename Output::In), p.across_log2, [&](i64 first_row, i64 first_col) {
    if (aligned && (cols - first_col >= tile_cols || cols % kVec8 == 0)) {
      elementwise_vec8s<Output>(params, first_row, first_col, maximum);
    } else {
      elementwise_elements<Output>(params, first_row, first_col, maximum);
    }
  });
}

template <class Output>
INGOT_DEVICE void elementwise_tiles(const typename Output::Params& params) {
  NoMaximum none;
  elementwise_tiles<Output>(params, none);
}

template <class Source>
INGOT_KERNEL void INGOT_LAUNCH_BOUNDS(ElementwiseLaunch::kThreads, elementwise_residency<Source>())
    elementwise(const __grid_constant__ ElementwiseParams p) {
  start_in_turn();
  elementwise_tiles<ElementwiseOutput<Source>>(p);
}

}  // namespace ingot
