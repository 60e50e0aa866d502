// The cast with dynamic scales of 1 x 128 groups, without transposed codes: codes[r, c] = encode(saturate(value[r, c] *
// scale[r, c / 128])), factors[r, g] = 1 / scale[r, g] in either order, and on demand the values themselves. It reads
// each input byte once and writes each output byte once, in memory order; no warp waits for another.
//
// Up to 256 threads take a row, vec8s() times 8 elements per thread at a time. Sixteen threads hold a group, 8 elements
// each; each thread computes the scale of one of the groups that the sixteen hold.
#pragma once

#include "cast/cast_output.cuh"
#include "cast/cast_rows.cuh"
#include "cast/source.cuh"
#include "memory.cuh"
#include "platform.cuh"
#include "reduce.cuh"
#include "scaling.cuh"
#include "vec8.cuh"

namespace ingot {

struct CastRowGroupsParams {
  SourceParams source;
  void* codes;                      // Out[rows, cols]
  float* factors;                   // [rows, ceil(cols / 128)], as factor_steps says
  void* result;                     // In[rows, cols], if CastRowsConfig::result
  i64 codes_stride, result_stride;  // elements
  u32 threads_log2;                 // log2 of the threads per row
  bool pow2;
  GroupSteps factor_steps{};
};

// Block size and grid are those of cast_rows with the same number of threads per row.
struct CastRowGroupsLaunch {
  static constexpr u32 kMaxThreadsLog2 = 8;
  static constexpr u32 kMaxThreads = 1U << kMaxThreadsLog2;
  INGOT_HOST_DEVICE static constexpr u32 threads_log2(i64 cols, u64 value_bytes) {  // per row
    return min_of(kMaxThreadsLog2, CastRowsLaunch::threads_log2(cols, value_bytes));
  }
};

// Blocks of 256 threads per SM: 64, 80 or 128 registers per thread.
template <class Source, Fp8Format Out>
INGOT_HOST_DEVICE constexpr u32 cast_row_groups_residency() {
  if (Source::kMany) return 2;
  return sizeof(typename Source::Value) == 2 && has_hardware_encode<Out>() && !Source::kFused ? 4 : 3;
}

// Casts a row that can be read and written 8 elements at a time.
template <class Source, Fp8Format Out, CastRowsConfig C>
INGOT_DEVICE void cast_row_of_groups(const CastRowGroupsParams& p, i64 row, bool active, u32 lane, u32 threads) {
  using In = typename Source::In;
  using Value = typename Source::Value;
  constexpr u32 kVec8s = CastRowsLaunch::vec8s(sizeof(Value));
  using Maxima = SharedMaxima<kVec8s>;
  const i64 cols = p.source.cols;
  // Counted in elements from `begin` on.
  const auto offset = [&](u32 i) { return (i * threads + lane) * kVec8; };
  INGOT_UNROLL_BY(1)
  for (i64 begin = 0; begin < cols; begin += i64{threads} * kVec8s * kVec8) {
    const u32 left = active ? static_cast<u32>(min_of(cols - begin, i64{0x7fffffff})) : 0;
    Vec8<Value> values[kVec8s];
    // Two matrices: a long expression of all values at once has not registers enough for three blocks.
    constexpr bool kByHalves = Source::kMatrices == 2 && kVec8s == 4;
    load_vec8s<Source, false, kByHalves>(p.source, Source::pointers_at(p.source, row, begin), values,
                                         [&](u32 i) -> Vec8Offset {
                                           return {0, offset(i), offset(i) < left};
                                         });
    u32 maxima[kVec8s];
    INGOT_UNROLL
    for (u32 i = 0; i < kVec8s; ++i) maxima[i] = amax_bits(values[i]);
    const float scale = scale_from_amax<Out>(amax_from_bits(Maxima::of(maxima)), p.pow2);
    const u32 group = offset(Maxima::index_of_lane(lane)) / static_cast<u32>(kGroup);
    if (Maxima::answers(lane) && group * static_cast<u32>(kGroup) < left) {
      p.factors[row * p.factor_steps.row + (begin / kGroup + group) * p.factor_steps.group] =
          factor_from_dynamic_scale(scale);
    }
    Out* const codes = static_cast<Out*>(p.codes) + row * p.codes_stride + begin;
    In* const result = C.result ? static_cast<In*>(p.result) + row * p.result_stride + begin : nullptr;
    INGOT_UNROLL
    for (u32 i = 0; i < kVec8s; ++i) {
      const u32 from = Maxima::lane_of_index(lane % 32, i);
      const float scale_of_vec8 = float_from_bits(__shfl_sync(0xffffffffU, float_bits(scale), from));
      const U32x2 encoded = quantize<Out>(values[i], [&](u32) { return scale_of_vec8; });
      if (offset(i) >= left) continue;
      store_streaming(codes + offset(i), encoded);
      if constexpr (C.result) store_vec8<In>(result + offset(i), values[i]);
    }
  }
}

// Casts any other row: a warp takes one group at a time.
template <class Source, Fp8Format Out, CastRowsConfig C>
INGOT_DEVICE void cast_row_by_elements(const CastRowGroupsParams& p, i64 row, u32 lane, u32 threads) {
  using In = typename Source::In;
  using Value = typename Source::Value;
  constexpr u32 kEach = static_cast<u32>(kGroup) / 32;
  const i64 cols = p.source.cols;
  Out* const codes = static_cast<Out*>(p.codes) + row * p.codes_stride;
  In* const result = C.result ? static_cast<In*>(p.result) + row * p.result_stride : nullptr;
  INGOT_UNROLL_BY(1)
  for (i64 begin = lane / 32 * kGroup; begin < cols; begin += threads / 32 * kGroup) {
    const auto col_of = [&](u32 i) { return begin + i * 32 + lane % 32; };
    Value values[kEach] = {};
    u32 maximum = 0;
    INGOT_UNROLL
    for (u32 i = 0; i < kEach; ++i) {
      if (col_of(i) < cols) values[i] = Source::element(p.source, row, col_of(i));
      maximum = max_of(maximum, amax_bits(to_float(values[i])));
    }
    maximum = __reduce_max_sync(0xffffffffU, maximum);
    const float scale = scale_from_amax<Out>(amax_from_bits(maximum), p.pow2);
    if (lane % 32 == 0) {
      p.factors[row * p.factor_steps.row + begin / kGroup * p.factor_steps.group] = factor_from_dynamic_scale(scale);
    }
    INGOT_UNROLL
    for (u32 i = 0; i < kEach; ++i) {
      if (col_of(i) >= cols) continue;
      codes[col_of(i)] = quantize<Out>(to_float(values[i]), scale);
      if constexpr (C.result) result[col_of(i)] = from_float<In>(to_float(values[i]));
    }
  }
}

template <class Source, Fp8Format Out, CastRowsConfig C>
INGOT_KERNEL void INGOT_LAUNCH_BOUNDS(CastRowGroupsLaunch::kMaxThreads, (cast_row_groups_residency<Source, Out>()))
    cast_row_groups(const __grid_constant__ CastRowGroupsParams p) {
  using In = typename Source::In;
  const u32 threads = 1U << p.threads_log2;
  const u32 lane = threadIdx.x & (threads - 1);
  const u32 rows_per_block = blockDim.x >> p.threads_log2;
  const bool aligned = p.source.cols % kVec8 == 0 && Source::aligned(p.source) &&
                       rows_aligned<Out>(p.codes, p.codes_stride, kVec8) &&
                       (!C.result || vector_aligned<In>(p.result, p.result_stride));
  start_in_turn();
  INGOT_UNROLL_BY(1)
  for (i64 first_row = i64{blockIdx.x} * rows_per_block; first_row < p.source.rows;
       first_row += i64{gridDim.x} * rows_per_block) {
    const i64 row = first_row + (threadIdx.x >> p.threads_log2);
    const bool active = row < p.source.rows;
    if (aligned) {
      cast_row_of_groups<Source, Out, C>(p, row, active, lane, threads);
    } else if (active) {
      cast_row_by_elements<Source, Out, C>(p, row, lane, threads);
    }
  }
}

}  // namespace ingot
