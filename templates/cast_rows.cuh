// Codes alone, of rows that stay rows: codes[r, c] = encode(saturate(value[r, c] * scale)), factors = 1 / scale, and
// the values themselves where they are wanted. Scales are those of the tensor, of rows or of 1 x 128 groups. Moves each
// input byte and each output byte once, in the order in which they lie in memory.
//
// A group of threads takes a row, two octets to a thread, or a part of a long row. Dynamic scales of whole rows are
// found from the same registers that then give the codes (of rows too long for them, by a first read); those of the
// tensor come from a pass before (amax.cuh), and then the last rows come first: the L2 still holds them. Given scales:
// the maxima that they should have been made from are recorded.
#pragma once

#include "amax.cuh"
#include "cast_output.cuh"
#include "memory.cuh"
#include "octet.cuh"
#include "platform.cuh"
#include "reduce.cuh"
#include "scaling.cuh"
#include "source.cuh"

namespace ingot {

struct CastRowsParams {
  SourceParams source;
  CastOutput codes;
  void* result;       // In[rows, cols], if Result
  i64 result_stride;  // elements
  u32 threads_log2;   // per row: of the launch
  bool pow2;
};

// Where a scale depends on its whole row, the row is one block's, with the threads of amax_rows; elsewhere up to 256
// threads take a part of it.
struct CastRowsLaunch {
  static constexpr u32 kOctets = 2;
  static constexpr u32 kPartThreads = 256;
  bool whole_rows;

  INGOT_HOST_DEVICE constexpr u32 threads_log2(i64 cols) const {
    const u32 log2 = RowsLaunch::threads_log2(cols);
    return whole_rows ? log2 : min_of(log2, 8U);
  }
  INGOT_HOST_DEVICE constexpr u32 threads(i64 cols) const {
    return max_of(RowsLaunch::kMinThreads, 1U << threads_log2(cols));
  }
  // Columns that one group of threads takes at a time, a multiple of 128.
  INGOT_HOST_DEVICE static constexpr i64 chunk(u32 threads_log2) { return i64{kOctets * kOctet} << threads_log2; }
  INGOT_HOST_DEVICE constexpr i64 chunks(i64 cols) const {
    return whole_rows ? 1 : max_of(i64{1}, ceil_div(cols, chunk(threads_log2(cols))));
  }
  // A matrix without elements may still have a scale, or rows that have: at least one block.
  INGOT_HOST_DEVICE constexpr i64 grid(i64 rows, i64 cols) const {
    const i64 rows_per_block = threads(cols) >> threads_log2(cols);
    return max_of(i64{1}, min_of(RowsLaunch::kMaxBlocks / chunks(cols), ceil_div(rows, rows_per_block))) * chunks(cols);
  }
};

// Does the scale of a row depend on all of it?
template <class Scale, bool Given>
inline constexpr bool kWholeRows = is_same<Scale, Rowwise> && !Given;

// Threads of a block, and blocks to a multiprocessor: 32, 40, 48, 64 or 80 registers to a thread.
template <class Scale, bool Given>
inline constexpr u32 kCastRowsThreads =
    kWholeRows<Scale, Given> ? RowsLaunch::kMaxThreads : CastRowsLaunch::kPartThreads;
template <class Source, Fp8Format Out, class Scale, bool Given>
INGOT_HOST_DEVICE constexpr u32 cast_rows_residency() {
  constexpr bool kPlain = sizeof(typename Source::Value) == 2 && has_hardware_encode<Out>() && !Source::kFused;
  if (kWholeRows<Scale, Given>) return kPlain ? 2 : 1;
  if (Source::kFused) return 3;
  return kPlain ? (is_same<Scale, RowGroups> ? 5 : 6) : 4;
}

// Over the 16 threads that hold 128 neighbouring columns.
INGOT_DEVICE u32 row_group_max(u32 bits) {
  INGOT_UNROLL
  for (u32 step = 8; step != 0; step /= 2) bits = max_of(bits, __shfl_xor_sync(0xffffffffU, bits, step));
  return bits;
}

// What the threads of one row have in common.
struct RowPlace {
  i64 row;
  i64 begin, end;  // columns
  i64 groups;      // of 128 columns, in a row
  u32 lane, threads;

  INGOT_DEVICE i64 col(u32 octet) const { return begin + (octet * i64{threads} + lane) * kOctet; }
};

// Stores octets; `scale` is that of the tensor or of the row. Returns the largest |value| of the thread, for Given.
template <class Source, Fp8Format Out, class Scale, bool Given, bool Result, HighPrecision Value>
INGOT_DEVICE u32 cast_octets(const CastRowsParams& p, const RowPlace& at, float scale,
                             const Octet<Value> (&values)[CastRowsLaunch::kOctets]) {
  using In = typename Source::In;
  auto* const codes = static_cast<Out*>(p.codes.codes) + at.row * p.codes.stride;
  u32 maximum = 0;
  INGOT_UNROLL
  for (u32 i = 0; i < CastRowsLaunch::kOctets; ++i) {
    const i64 col = at.col(i);
    const bool inside = col < at.end;
    u32 bits = 0;
    if constexpr (Given || is_same<Scale, RowGroups>) bits = amax_bits(values[i]);
    if constexpr (is_same<Scale, RowGroups>) {
      bits = row_group_max(bits);
      const i64 index = at.row * at.groups + col / kGroup;
      const bool first = inside && at.lane % 16 == 0;
      if constexpr (Given) {
        if (inside) scale = p.codes.from[index];
        if (first) raise_maximum(p.codes.amax + index, bits);
      } else {
        scale = scale_from_amax<Out>(amax_from_bits(bits), p.pow2);
      }
      if (first) p.codes.factors[index] = factor_from_scale(scale);
    }
    maximum = max_of(maximum, bits);
    if (!inside) continue;
    store_streaming(codes + col, quantize<Out>(values[i], [&](u32) { return scale; }));
    if constexpr (Result) {
      store_octet<In>(static_cast<In*>(p.result) + at.row * p.result_stride + col, values[i]);
    }
  }
  return maximum;
}

// The same where octets cannot be read or written whole: a warp takes 128 columns at a time.
template <class Source, Fp8Format Out, class Scale, bool Given, bool Result>
INGOT_DEVICE u32 cast_elements(const CastRowsParams& p, const RowPlace& at, float scale) {
  using In = typename Source::In;
  using Value = typename Source::Value;
  constexpr u32 kEach = static_cast<u32>(kGroup) / 32;
  auto* const codes = static_cast<Out*>(p.codes.codes) + at.row * p.codes.stride;
  u32 maximum = 0;
  INGOT_UNROLL_BY(1)
  for (i64 begin = at.begin + at.lane / 32 * kGroup; begin < at.end; begin += at.threads / 32 * kGroup) {
    Value values[kEach] = {};
    u32 bits = 0;
    INGOT_UNROLL
    for (u32 i = 0; i < kEach; ++i) {
      const i64 col = begin + i * 32 + at.lane % 32;
      if (col < at.end) values[i] = Source::element(p.source, at.row, col);
      if constexpr (Given || is_same<Scale, RowGroups>) bits = max_of(bits, amax_bits(to_float(values[i])));
    }
    if constexpr (is_same<Scale, RowGroups>) {
      bits = __reduce_max_sync(0xffffffffU, bits);
      const i64 index = at.row * at.groups + begin / kGroup;
      scale = Given ? p.codes.from[index] : scale_from_amax<Out>(amax_from_bits(bits), p.pow2);
      if (at.lane % 32 == 0) {
        p.codes.factors[index] = factor_from_scale(scale);
        if constexpr (Given) raise_maximum(p.codes.amax + index, bits);
      }
    }
    maximum = max_of(maximum, bits);
    INGOT_UNROLL
    for (u32 i = 0; i < kEach; ++i) {
      const i64 col = begin + i * 32 + at.lane % 32;
      if (col >= at.end) continue;
      codes[col] = quantize<Out>(to_float(values[i]), scale);
      if constexpr (Result) {
        static_cast<In*>(p.result)[at.row * p.result_stride + col] = from_float<In>(to_float(values[i]));
      }
    }
  }
  return maximum;
}

template <class Source, Fp8Format Out, class Scale, bool Given, bool Result>
INGOT_KERNEL void INGOT_LAUNCH_BOUNDS((kCastRowsThreads<Scale, Given>),
                                      (cast_rows_residency<Source, Out, Scale, Given>()))
    cast_rows(const __grid_constant__ CastRowsParams p) {
  using In = typename Source::In;
  using Value = typename Source::Value;
  constexpr u32 kOctets = CastRowsLaunch::kOctets;
  constexpr bool kWhole = kWholeRows<Scale, Given>;
  constexpr bool kTensor = is_same<Scale, Tensorwise>;
  constexpr bool kAfterPass = kTensor && !Given;
  __shared__ u32 warp_maxima[kMaxWarps];

  const i64 rows = p.source.rows;
  const i64 cols = p.source.cols;
  const u32 threads = 1U << p.threads_log2;
  const u32 rows_per_block = blockDim.x >> p.threads_log2;
  const i64 chunk = CastRowsLaunch::chunk(p.threads_log2);
  const u32 chunks = kWhole ? 1 : max_of(1U, static_cast<u32>(ceil_div(cols, chunk)));
  const u32 part = chunks == 1 ? 0 : blockIdx.x % chunks;
  const u32 block = chunks == 1 ? blockIdx.x : blockIdx.x / chunks;
  const i64 step = i64{chunks == 1 ? gridDim.x : gridDim.x / chunks} * rows_per_block;
  const bool aligned = cols % kOctet == 0 && Source::aligned(p.source) &&
                       rows_aligned<u8>(p.codes.codes, p.codes.stride, kOctet) &&
                       (!Result || vector_aligned<In>(p.result, p.result_stride));
  // Do all columns of this part fit into the registers of its threads?
  const bool kept = aligned && (!kWhole || cols <= chunk);
  RowPlace at{.row = 0,
              .begin = part * chunk,
              .end = kWhole ? cols : min_of(cols, (part + i64{1}) * chunk),
              .groups = ceil_div(cols, kGroup),
              .lane = threadIdx.x & (threads - 1),
              .threads = threads};
  // Of the matrix's rows those at the end come first.
  const auto enter = [&](i64 first_row) {
    at.row = rows - 1 - (first_row + (threadIdx.x >> p.threads_log2));
    return at.row >= 0;
  };
  Octet<Value> values[kOctets];
  const auto load = [&](bool wanted) {
    INGOT_UNROLL
    for (u32 i = 0; i < kOctets; ++i) {
      values[i] = {};
      if (wanted && at.col(i) < at.end) values[i] = Source::load(p.source, at.row, at.col(i));
    }
  };

  i64 first_row = i64{block} * rows_per_block;
  bool active = enter(first_row);
  float scale = 0.0F;
  if constexpr (kAfterPass) load(active && kept);
  start_in_turn();
  if constexpr (kTensor) {
    scale = Given ? p.codes.from[0]
                  : scale_from_amax<Out>(amax_from_bits(maximum_of_partials(p.codes, blockDim.x, warp_maxima)), p.pow2);
    if (blockIdx.x == 0 && threadIdx.x == 0) p.codes.factors[0] = factor_from_scale(scale);
  }
  u32 tensor_maximum = 0;
  while (first_row < rows) {
    if constexpr (is_same<Scale, Rowwise> && Given) {
      if (active) scale = p.codes.from[at.row];
    }
    if constexpr (!kAfterPass) load(active && kept);
    if constexpr (kWhole) {
      u32 maximum = 0;
      if (kept) {
        INGOT_UNROLL
        for (u32 i = 0; i < kOctets; ++i) maximum = max_of(maximum, amax_bits(values[i]));
      } else if (active) {
        maximum = amax_of_row<Source>(p.source, at.row, aligned, at.lane, threads);
      }
      scale = scale_from_amax<Out>(amax_from_bits(group_max(maximum, threads, warp_maxima)), p.pow2);
    }
    if (is_same<Scale, Rowwise> && active && at.lane == 0 && part == 0) {
      p.codes.factors[at.row] = factor_from_scale(scale);
    }
    u32 maximum = 0;
    if (kept) {
      RowPlace here = at;
      if (!active) here.end = 0;
      maximum = cast_octets<Source, Out, Scale, Given, Result>(p, here, scale, values);
    } else if (active && (!kWhole || !aligned)) {
      maximum = cast_elements<Source, Out, Scale, Given, Result>(p, at, scale);
    } else if (active) {  // a long row, read again
      INGOT_UNROLL_BY(1)
      for (i64 begin = 0; begin < cols; begin += chunk) {
        at.begin = begin;
        load(true);
        cast_octets<Source, Out, Scale, Given, Result>(p, at, scale, values);
      }
      at.begin = 0;
    }
    if constexpr (Given && is_same<Scale, Rowwise>) {
      maximum = group_max(maximum, threads, warp_maxima);
      if (active && at.lane == 0 && cols != 0) raise_maximum(p.codes.amax + at.row, maximum);
    }
    if constexpr (Given && kTensor) tensor_maximum = max_of(tensor_maximum, maximum);
    first_row += step;
    active = enter(first_row);
    if constexpr (kAfterPass) load(active && kept);
  }
  if constexpr (Given && kTensor) {
    tensor_maximum = group_max(tensor_maximum, blockDim.x, warp_maxima);
    if (threadIdx.x == 0) raise_maximum(p.codes.amax, tensor_maximum);
  }
}

}  // namespace ingot
