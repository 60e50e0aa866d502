// output[r, c] = value[r, c]: an expression of matrices, rows and columns, computed in f32 and rounded (source.cuh);
// the `result` of a cast without the cast. Moves each input byte and each output byte once, in any shape.
//
// A block takes a tile: each of its threads an octet of columns, in several rows one below the other, all on their way
// before the first is computed with; where rows cannot be read in octets, element by element. The output may be one of
// the matrices that are read: an element is read by the thread that writes it, before that, and by plain loads.
#pragma once

#include "memory.cuh"
#include "octet.cuh"
#include "platform.cuh"
#include "source.cuh"

namespace ingot {

struct ElementwiseParams {
  SourceParams source;
  void* output;       // In[rows, cols]
  i64 output_stride;  // elements
  u32 across_log2;    // ElementwiseLaunch's
};

struct ElementwiseLaunch {
  static constexpr u32 kThreads = 256;
  static constexpr u32 kThreadsLog2 = 8;
  static constexpr i64 kMaxBlocks = 0x7fffffff;
  // Rows of a thread: 64 bytes of each matrix.
  INGOT_HOST_DEVICE static constexpr u32 rows(u64 value_bytes) { return value_bytes == 4 ? 2 : 4; }
  // Threads beside each other: 8 where the matrix is as wide, more where few of them have no columns then.
  INGOT_HOST_DEVICE static constexpr u32 across_log2(i64 cols) {
    const i64 octets = ceil_div(cols, i64{kOctet});
    u32 log2 = 0;
    while (log2 < 3 && (i64{1} << log2) < octets) ++log2;
    for (u32 wider = log2 + 1; wider <= kThreadsLog2; ++wider) {
      const i64 idle = (ceil_div(octets, i64{1} << wider) << wider) - octets;
      if (idle * 16 <= octets) log2 = wider;
    }
    return log2;
  }
  INGOT_HOST_DEVICE static constexpr i64 tile_cols(u32 across_log2) { return i64{kOctet} << across_log2; }
  INGOT_HOST_DEVICE static constexpr i64 tile_rows(u32 across_log2, u64 value_bytes) {
    return i64{rows(value_bytes)} << (kThreadsLog2 - across_log2);
  }
  INGOT_HOST_DEVICE static constexpr i64 grid(i64 rows, i64 cols, u64 value_bytes) {
    const u32 log2 = across_log2(cols);
    return min_of(kMaxBlocks, ceil_div(rows, tile_rows(log2, value_bytes)) * ceil_div(cols, tile_cols(log2)));
  }
};

// Registers that hold what a thread has fetched of `rows` rows.
template <class Source>
INGOT_HOST_DEVICE constexpr u32 elementwise_registers(u32 rows) {
  return (rows * Source::kMatrices + Source::kColumns) * static_cast<u32>(sizeof(Octet<typename Source::In>)) / 4;
}
// Rows that are fetched before the first is computed with.
template <class Source>
INGOT_HOST_DEVICE constexpr u32 elementwise_batch() {
  constexpr u32 kRows = ElementwiseLaunch::rows(sizeof(typename Source::In));
  return elementwise_registers<Source>(kRows) <= 64 ? kRows : kRows / 2;
}
// Blocks to a multiprocessor: 64, 80 or 128 registers to a thread.
template <class Source>
INGOT_HOST_DEVICE constexpr u32 elementwise_residency() {
  constexpr u32 kFetched = elementwise_registers<Source>(elementwise_batch<Source>());
  return kFetched <= 16 ? 4 : kFetched <= 32 ? 3 : 2;
}

// Whole octets, in rows that can be read and written so.
template <class Source>
INGOT_DEVICE void elementwise_octets(const ElementwiseParams& p, i64 first_row, i64 first_col) {
  using In = typename Source::In;
  constexpr u32 kRows = ElementwiseLaunch::rows(sizeof(In));
  constexpr u32 kBatch = elementwise_batch<Source>();
  const u32 down = ElementwiseLaunch::kThreads >> p.across_log2;  // from a thread's row to its next
  const i64 row = first_row + (threadIdx.x >> p.across_log2);
  const i64 col = first_col + i64{threadIdx.x & ((1U << p.across_log2) - 1)} * kOctet;
  const i64 rows_left = col < p.source.cols ? p.source.rows - row : 0;
  const auto is_inside = [&](u32 i) { return i64{i * down} < rows_left; };
  if (!is_inside(0)) return;
  const typename Source::Place at = Source::place(p.source, row, col);
  const typename Source::RawColumns columns = Source::fetch_columns(at, 0);
  In* const output = static_cast<In*>(p.output) + row * p.output_stride + col;
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
      store_octet<In>(output + (first + i) * down * p.output_stride, Source::values(raw[i], columns));
    }
  }
}

// Neighbouring threads take neighbouring elements.
template <class Source>
INGOT_DEVICE void elementwise_elements(const ElementwiseParams& p, i64 first_row, i64 first_col) {
  using In = typename Source::In;
  using Launch = ElementwiseLaunch;
  constexpr u32 kAtOnce = 4;
  const u32 width_log2 = p.across_log2 + 3;
  constexpr u32 kElements = Launch::rows(sizeof(In)) * Launch::kThreads * kOctet;
  INGOT_UNROLL_BY(1)
  for (u32 first = threadIdx.x; first < kElements; first += Launch::kThreads * kAtOnce) {
    const auto row_of = [&](u32 i) { return first_row + ((first + i * Launch::kThreads) >> width_log2); };
    const auto col_of = [&](u32 i) { return first_col + ((first + i * Launch::kThreads) & ((1U << width_log2) - 1)); };
    const auto is_inside = [&](u32 i) { return row_of(i) < p.source.rows && col_of(i) < p.source.cols; };
    In values[kAtOnce] = {};
    INGOT_UNROLL
    for (u32 i = 0; i < kAtOnce; ++i) {
      if (is_inside(i)) values[i] = Source::element(p.source, row_of(i), col_of(i));
    }
    INGOT_UNROLL
    for (u32 i = 0; i < kAtOnce; ++i) {
      if (is_inside(i)) static_cast<In*>(p.output)[row_of(i) * p.output_stride + col_of(i)] = values[i];
    }
  }
}

template <class Source>
INGOT_KERNEL void INGOT_LAUNCH_BOUNDS(ElementwiseLaunch::kThreads, elementwise_residency<Source>())
    elementwise(const __grid_constant__ ElementwiseParams p) {
  using In = typename Source::In;
  using Launch = ElementwiseLaunch;
  const i64 tile_rows = Launch::tile_rows(p.across_log2, sizeof(In));
  const i64 tile_cols = Launch::tile_cols(p.across_log2);
  const bool aligned = Source::aligned(p.source) && vector_aligned<In>(p.output, p.output_stride);
  const u32 strips = static_cast<u32>(ceil_div(p.source.cols, tile_cols));
  const u32 band_step = gridDim.x / strips;
  const u32 strip_step = gridDim.x % strips;
  u32 strip = blockIdx.x % strips;
  start_in_turn();
  INGOT_UNROLL_BY(1)
  for (i64 band = blockIdx.x / strips; band * tile_rows < p.source.rows; band += band_step) {
    const i64 first_col = strip * tile_cols;
    if (aligned && (p.source.cols - first_col >= tile_cols || p.source.cols % kOctet == 0)) {
      elementwise_octets<Source>(p, band * tile_rows, first_col);
    } else {
      elementwise_elements<Source>(p, band * tile_rows, first_col);
    }
    strip += strip_step;
    if (strip >= strips) {
      strip -= strips;
      ++band;
    }
  }
}

}  // namespace ingot
