// The dynamic rowwise cast in one launch: codes[r, c] = encode(saturate(value[r, c] * scale[r])), factors[r] = 1 /
// scale[r], and the values themselves where they are wanted. Moves each input byte and each output byte once: a row
// stays in its threads' registers between its amax and its codes (longer rows are read again, from the L2).
#pragma once

#include "amax.cuh"
#include "memory.cuh"
#include "octet.cuh"
#include "platform.cuh"
#include "reduce.cuh"
#include "scaling.cuh"
#include "source.cuh"

namespace ingot {

struct CastRowsParams {
  SourceParams source;
  void* codes;                      // Out[rows, cols]
  float* factors;                   // [rows]
  void* result;                     // In[rows, cols], if Result
  i64 codes_stride, result_stride;  // elements
  u32 threads_log2;                 // per row: of the launch
  bool pow2;
};

// Threads and grid as for amax_rows: rows of up to kOctets octets to a thread stay in registers.
struct CastRowsLaunch : RowsLaunch {
  static constexpr u32 kOctets = 2;
};

// Two blocks of 1024 threads where a multiprocessor takes them and 32 registers are enough.
template <class Source, Fp8Format Out>
INGOT_HOST_DEVICE constexpr u32 cast_rows_residency() {
  constexpr bool kTakesThem = kDeviceArch == 900 || kDeviceArch == 1000;
  return kTakesThem && sizeof(typename Source::Value) == 2 && has_hardware_encode<Out>() && !Source::kFused ? 2 : 1;
}

template <class Source, Fp8Format Out, bool Result>
INGOT_KERNEL void INGOT_LAUNCH_BOUNDS(RowsLaunch::kMaxThreads, (cast_rows_residency<Source, Out>()))
    cast_rows(const __grid_constant__ CastRowsParams p) {
  using In = typename Source::In;
  using Value = typename Source::Value;
  constexpr u32 kOctets = CastRowsLaunch::kOctets;
  __shared__ u32 warp_maxima[kMaxWarps];
  const i64 cols = p.source.cols;
  const u32 threads = 1U << p.threads_log2;
  const u32 lane = threadIdx.x & (threads - 1);
  const u32 rows_per_block = blockDim.x >> p.threads_log2;
  const bool aligned = cols % kOctet == 0 && Source::aligned(p.source) &&
                       rows_aligned<Out>(p.codes, p.codes_stride, kOctet) &&
                       (!Result || vector_aligned<In>(p.result, p.result_stride));
  const bool kept = aligned && cols <= i64{threads} * kOctets * kOctet;
  const auto col_of = [&](u32 i) { return (i * i64{threads} + lane) * kOctet; };
  start_in_turn();

  for (i64 first_row = i64{blockIdx.x} * rows_per_block; first_row < p.source.rows;
       first_row += i64{gridDim.x} * rows_per_block) {
    const i64 row = first_row + (threadIdx.x >> p.threads_log2);
    const bool active = row < p.source.rows;
    Octet<Value> values[kOctets];
    u32 maximum = 0;
    if (active && kept) {
      INGOT_UNROLL
      for (u32 i = 0; i < kOctets; ++i) {
        if (col_of(i) < cols) values[i] = Source::load(p.source, row, col_of(i));
      }
      INGOT_UNROLL
      for (u32 i = 0; i < kOctets; ++i) maximum = max_of(maximum, amax_bits(values[i]));
    } else if (active) {
      maximum = amax_of_row<Source>(p.source, row, aligned, lane, threads);
    }
    maximum = group_max(maximum, threads, warp_maxima);
    if (!active) continue;

    const float scale = scale_from_amax<Out>(amax_from_bits(maximum), p.pow2);
    if (lane == 0) p.factors[row] = factor_from_scale(scale);
    Out* codes = static_cast<Out*>(p.codes) + row * p.codes_stride;
    In* result = Result ? static_cast<In*>(p.result) + row * p.result_stride : nullptr;
    const auto store = [&](i64 col, const Octet<Value>& octet) {
      store_streaming(codes + col, quantize<Out>(octet, [&](u32) { return scale; }));
      if constexpr (Result) store_octet<In>(result + col, octet);
    };
    if (kept) {
      INGOT_UNROLL
      for (u32 i = 0; i < kOctets; ++i) {
        if (col_of(i) < cols) store(col_of(i), values[i]);
      }
    } else if (aligned) {
      INGOT_UNROLL_BY(1)
      for (i64 col = i64{lane} * kOctet; col < cols; col += i64{threads} * kOctet) {
        store(col, Source::load(p.source, row, col));
      }
    } else {
      INGOT_UNROLL_BY(1)
      for (i64 col = lane; col < cols; col += threads) {
        const float value = to_float(Source::element(p.source, row, col));
        codes[col] = quantize<Out>(value, scale);
        if constexpr (Result) result[col] = from_float<In>(value);
      }
    }
  }
}

}  // namespace ingot
