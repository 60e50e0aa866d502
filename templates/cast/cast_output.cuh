// One of the two outputs of a cast, with what belongs to it.
#pragma once

#include "memory.cuh"
#include "platform.cuh"
#include "reduce.cuh"
#include "scaling.cuh"

namespace ingot {

// In place of a scale: an output that is not written.
struct NotWritten {};

// One of the two outputs. Scales, factors and maxima are dense arrays over the matrix's extents, row by row: [1],
// [rows], [cols], [rows, ceil(cols / 128)], [ceil(rows / 128), cols] or [ceil(rows / 128), ceil(cols / 128)].
struct CastOutput {
  void* codes;     // Out[rows, cols] or, transposed, Out[cols, rows]
  i64 stride;      // elements
  float* from;     // dynamic, tensorwise: partial maxima; rowwise, columnwise: the maxima. Given: the scales
  i64 from_count;  // of the partial maxima
  float* factors;
  u32* amax;     // given: raised to the largest |value|, as bits
  u32* readers;  // null, or how many tiles have read from[] (is_last_reader)
};

// The largest of the partial maxima, as bits. All `threads` of the block call it.
INGOT_DEVICE u32 maximum_of_partials(const CastOutput& output, u32 threads, u32 (&warp_maxima)[kMaxWarps]) {
  u32 bits = 0;
  INGOT_UNROLL_BY(1)
  for (i64 i = threadIdx.x; i < output.from_count; i += threads) bits = max_of(bits, float_bits(output.from[i]));
  return group_max(bits, threads, warp_maxima);
}

// The first `count` bytes.
INGOT_DEVICE void store_bytes(u8* target, U32x2 bytes, u32 count) {
  u64 rest = u64{bytes.y} << 32 | bytes.x;
  INGOT_UNROLL_BY(1)
  for (u32 i = 0; i < count; ++i, rest >>= 8) target[i] = static_cast<u8>(rest);
}

}  // namespace ingot
