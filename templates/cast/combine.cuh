// combine: output[t] = the sum over j of input[index[t * choices + j]], in f32 from 0 in the order of j, rounded once.
// So a mixture of experts sums the outputs of each token's experts, and the gradients of a token's copies.
//
// It reads each row once for each time that it is named, and writes each output byte once. A thread takes 8
// neighbouring columns of a token: it loads those of up to 8 rows before it adds the first. An index that no row has
// counts as nothing.
#pragma once

#include "memory.cuh"
#include "numerics.cuh"
#include "platform.cuh"
#include "vec8.cuh"

namespace ingot {

struct CombineParams {
  const void* input;  // In[rows, cols]
  i64 rows, cols;
  i64 input_stride;  // elements
  const i32* index;  // [tokens, choices]
  u32 choices;
  void* output;       // In[tokens, cols]
  i64 output_stride;  // elements
  u32 segments;       // CombineLaunch::segments()
};

// Blocks take segments of tokens' rows, of one length, so that few threads are without columns.
struct CombineLaunch {
  static constexpr u32 kMaxThreads = 256;
  static constexpr u32 kInFlight = 8;  // rows
  INGOT_HOST_DEVICE static constexpr i64 vec8s(i64 cols) { return ceil_div(cols, i64{kVec8}); }
  INGOT_HOST_DEVICE static constexpr i64 segments(i64 cols) { return ceil_div(vec8s(cols), i64{kMaxThreads}); }
  INGOT_HOST_DEVICE static constexpr u32 threads(i64 cols) {
    return static_cast<u32>(ceil_div(ceil_div(vec8s(cols), segments(cols)), i64{32}) * 32);
  }
  INGOT_HOST_DEVICE static constexpr i64 grid(i64 tokens, i64 cols) { return tokens * segments(cols); }
};

// Adds the 8 columns from `col` on of each row that the index names, `width` of which are inside the matrix.
template <HighPrecision In>
INGOT_DEVICE void combine_vec8(const CombineParams& p, const i32* index, i64 col, u32 width, bool aligned,
                               float (&sums)[kVec8]) {
  constexpr u32 kInFlight = CombineLaunch::kInFlight;
  const In* const from = static_cast<const In*>(p.input) + col;
  INGOT_UNROLL_BY(1)
  for (u32 first = 0; first < p.choices; first += kInFlight) {
    Vec8<In> rows[kInFlight] = {};
    bool named[kInFlight];
    INGOT_UNROLL
    for (u32 i = 0; i < kInFlight; ++i) {
      const i64 row = first + i < p.choices ? i64{index[first + i]} : -1;
      named[i] = row >= 0 && row < p.rows;
      if (!named[i]) continue;
      rows[i] =
          aligned ? load_vec8_once(from + row * p.input_stride) : load_elements(from + row * p.input_stride, width);
    }
    INGOT_UNROLL
    for (u32 i = 0; i < kInFlight; ++i) {
      if (!named[i]) continue;
      float x[kVec8];
      unpack(rows[i], x);
      INGOT_UNROLL
      for (u32 c = 0; c < kVec8; ++c) sums[c] = sums[c] + x[c];
    }
  }
}

template <HighPrecision In>
INGOT_KERNEL void INGOT_LAUNCH_BOUNDS(CombineLaunch::kMaxThreads, 2) combine(const __grid_constant__ CombineParams p) {
  start_in_turn();
  const i64 token = blockIdx.x / p.segments;
  const i64 col = (i64{blockIdx.x % p.segments} * blockDim.x + threadIdx.x) * kVec8;
  if (col >= p.cols) return;
  const u32 width = static_cast<u32>(min_of(i64{kVec8}, p.cols - col));
  const bool whole = width == kVec8;
  float sums[kVec8] = {};
  combine_vec8<In>(p, p.index + token * p.choices, col, width,
                   whole && vector_aligned<In>(static_cast<const In*>(p.input), p.input_stride), sums);
  In* const output = static_cast<In*>(p.output) + token * p.output_stride + col;
  if (whole && vector_aligned<In>(static_cast<const In*>(p.output), p.output_stride)) {
    store_vec8<In>(output, pack<In>(sums));
  } else {
    INGOT_UNROLL
    for (u32 c = 0; c < kVec8; ++c) {
      if (c < width) output[c] = from_float<In>(sums[c]);
    }
  }
}

}  // namespace ingot
