// The parameters of one of a cast's two outputs (codes, transposed codes): where its codes go, and its scales, factors
// and maxima.
#pragma once

#include "memory.cuh"
#include "platform.cuh"
#include "reduce.cuh"
#include "scaling.cuh"

namespace ingot {

// Stands for the scale of an output that is not written.
struct NotWritten {};

// Scales, factors and maxima are dense arrays with one entry per extent that shares a scale, row by row: [1], [rows],
// [cols], [rows, ceil(cols / 128)], [ceil(rows / 128), cols] or [ceil(rows / 128), ceil(cols / 128)].
struct CastOutput {
  void* codes;     // Out[rows, cols] or, transposed, Out[cols, rows]
  i64 stride;      // elements
  float* from;     // dynamic: partial maxima (tensorwise) or the maxima (rowwise, columnwise). Given: the scales
  i64 from_count;  // number of partial maxima
  float* factors;
  u32* amax;     // given: raised to the largest |value|, as bits
  u32* readers;  // null, or counts of the tiles that have read from[] (is_last_reader)
};

// The largest of the partial maxima, as bits. All `threads` threads of the block call it.
INGOT_DEVICE u32 maximum_of_partials(const CastOutput& output, u32 threads, u32 (&warp_maxima)[kMaxWarps]) {
  u32 bits = 0;
  INGOT_UNROLL_BY(1)
  for (i64 i = threadIdx.x; i < output.from_count; i += threads) bits = max_of(bits, float_bits(output.from[i]));
  return group_max(bits, threads, warp_maxima);
}

// Stores the first `count` bytes.
INGOT_DEVICE void store_bytes(u8* target, U32x2 bytes, u32 count) {
  u64 rest = u64{bytes.y} << 32 | bytes.x;
  INGOT_UNROLL_BY(1)
  for (u32 i = 0; i < count; ++i, rest >>= 8) target[i] = static_cast<u8>(rest);
}

}  // namespace ingot
