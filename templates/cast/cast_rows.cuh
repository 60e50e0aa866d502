// The dynamic rowwise cast in one launch: codes[r, c] = encode(saturate(value[r, c] * scale[r])), factors[r] = 1 /
// scale[r], and on demand the values themselves. It reads each input byte once and writes each output byte once: a row
// stays in its threads' registers between its amax and its codes. Longer rows are read again, from the L2. (Wide rows
// that can be read 8 elements at a time use cast_rows_wide.cuh, one block per row.) It can also leave the maxima for a
// second kernel that makes the transposed codes (cast_tiles.cuh).
#pragma once

#include "cast/amax.cuh"
#include "cast/source.cuh"
#include "memory.cuh"
#include "platform.cuh"
#include "reduce.cuh"
#include "scaling.cuh"
#include "vec8.cuh"

namespace ingot {

// The template arguments of cast_rows and cast_row_groups that are not types.
struct CastRowsConfig {
  bool result = false;  // writes the values themselves
};

struct CastRowsParams {
  SourceParams source;
  void* codes;                      // Out[rows, cols]
  float* factors;                   // [rows]
  void* result;                     // In[rows, cols], if CastRowsConfig::result
  i64 codes_stride, result_stride;  // elements
  float* maxima;                    // null, or [rows]: the largest |value|
  u32 threads_log2;                 // log2 of the threads per row
  bool pow2;
};

// A group of 32 to 512 threads takes a row, vec8s() times 8 elements per thread; a block has at least 128 threads, so
// it may hold several groups. Longer rows do not stay in registers: the threads loop.
struct CastRowsLaunch {
  static constexpr u32 kMaxThreadsLog2 = 9;
  static constexpr u32 kMaxThreads = 1U << kMaxThreadsLog2;
  static constexpr u32 kMinThreads = 128;  // in a block
  static constexpr i64 kMaxBlocks = 0x7fffffff;
  // 64 bytes of values in flight per thread.
  INGOT_HOST_DEVICE static constexpr u32 vec8s(u64 value_bytes) { return value_bytes == 4 ? 2 : 4; }
  INGOT_HOST_DEVICE static constexpr u32 threads_log2(i64 cols, u64 value_bytes) {  // per row
    u32 log2 = 5;
    while (log2 < kMaxThreadsLog2 && (i64{kVec8} * vec8s(value_bytes) << log2) < cols) ++log2;
    return log2;
  }
  INGOT_HOST_DEVICE static constexpr u32 threads(u32 threads_log2) { return max_of(kMinThreads, 1U << threads_log2); }
  INGOT_HOST_DEVICE static constexpr i64 grid(i64 rows, u32 threads_log2) {
    return min_of(kMaxBlocks, ceil_div(rows, i64{threads(threads_log2) >> threads_log2}));
  }
};

// Blocks of 512 threads per SM, as registers allow: 40, 64 or 128 per thread.
template <class Source, Fp8Format Out>
INGOT_HOST_DEVICE constexpr u32 cast_rows_residency() {
  if (Source::kMany) return 1;
  return sizeof(typename Source::Value) == 2 && has_hardware_encode<Out>() && !Source::kFused ? 3 : 2;
}

template <class Source, Fp8Format Out, CastRowsConfig C>
INGOT_KERNEL void INGOT_LAUNCH_BOUNDS(CastRowsLaunch::kMaxThreads, (cast_rows_residency<Source, Out>()))
    cast_rows(const __grid_constant__ CastRowsParams p) {
  using In = typename Source::In;
  using Value = typename Source::Value;
  constexpr u32 kVec8s = CastRowsLaunch::vec8s(sizeof(Value));
  __shared__ u32 warp_maxima[kMaxWarps];
  const i64 cols = p.source.cols;
  const u32 threads = 1U << p.threads_log2;
  const u32 lane = threadIdx.x & (threads - 1);
  const u32 rows_per_block = blockDim.x >> p.threads_log2;
  const bool aligned = cols % kVec8 == 0 && Source::aligned(p.source) &&
                       rows_aligned<Out>(p.codes, p.codes_stride, kVec8) &&
                       (!C.result || vector_aligned<In>(p.result, p.result_stride));
  const bool kept = aligned && cols <= i64{threads} * kVec8s * kVec8;
  // For a row that stays in registers, so its column numbers fit 32 bits.
  const auto col_of = [&](u32 i) { return (i * threads + lane) * kVec8; };
  const auto is_in_row = [&](u32 i) { return col_of(i) < static_cast<u32>(cols); };
  start_in_turn();

  for (i64 first_row = i64{blockIdx.x} * rows_per_block; first_row < p.source.rows;
       first_row += i64{gridDim.x} * rows_per_block) {
    const i64 row = first_row + (threadIdx.x >> p.threads_log2);
    const bool active = row < p.source.rows;
    Vec8<Value> values[kVec8s] = {};
    u32 maximum = 0;
    if (active && kept) {
      load_vec8s<Source, false>(p.source, Source::pointers_at(p.source, row, 0), values, [&](u32 i) -> Vec8Offset {
        return {0, col_of(i), is_in_row(i)};
      });
      INGOT_UNROLL
      for (u32 i = 0; i < kVec8s; ++i) maximum = max_of(maximum, amax_bits(values[i]));
    } else if (active) {
      maximum = amax_of_row<Source>(p.source, row, aligned, lane, threads);
    }
    maximum = group_max(maximum, threads, warp_maxima);
    if (!active) continue;

    const float scale = scale_from_amax<Out>(amax_from_bits(maximum), p.pow2);
    if (lane == 0) {
      p.factors[row] = factor_from_dynamic_scale(scale);
      if (p.maxima != nullptr) p.maxima[row] = amax_from_bits(maximum);
    }
    Out* codes = static_cast<Out*>(p.codes) + row * p.codes_stride;
    In* result = C.result ? static_cast<In*>(p.result) + row * p.result_stride : nullptr;
    if (kept) {
      INGOT_UNROLL
      for (u32 i = 0; i < kVec8s; ++i) {
        const U32x2 encoded = quantize<Out>(values[i], [&](u32) { return scale; });
        if (!is_in_row(i)) continue;
        store_streaming(codes + col_of(i), encoded);
        if constexpr (C.result) store_vec8<In>(result + col_of(i), values[i]);
      }
    } else if (aligned) {
      INGOT_UNROLL_BY(1)
      for (i64 col = i64{lane} * kVec8; col < cols; col += i64{threads} * kVec8) {
        const Vec8<Value> vec8 = Source::load(p.source, row, col);
        store_streaming(codes + col, quantize<Out>(vec8, [&](u32) { return scale; }));
        if constexpr (C.result) store_vec8<In>(result + col, vec8);
      }
    } else {
      INGOT_UNROLL_BY(1)
      for (i64 col = lane; col < cols; col += threads) {
        const float value = to_float(Source::element(p.source, row, col));
        codes[col] = quantize<Out>(value, scale);
        if constexpr (C.result) result[col] = from_float<In>(value);
      }
    }
  }
}

}  // namespace ingot
