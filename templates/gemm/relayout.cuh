// Copies one-byte codes to rows that start at multiples of 16 bytes, as a tensor-core GEMM reads them: out[r, c] =
// in[r, c] or, if transposed, out[c, r] = in[r, c]. It reads and writes each byte once, and leaves the bytes between a
// row's end and the next row's start alone. Matrices of one size that stand one after the other are copied in one
// launch, each transposed by itself: the weights of a mixture of experts.
//
// It works as cast_tiles.cuh does with codes: a thread has 8 rows x 8 columns, and transposed tiles go out through
// shared memory.
#pragma once

#include "cast/cast_output.cuh"
#include "cast/cast_tile_codes.cuh"
#include "cast/cast_tile_shared.cuh"
#include "memory.cuh"
#include "platform.cuh"

namespace ingot {

struct RelayoutParams {
  const u8* in;  // [rows, cols]
  i64 rows, cols;
  i64 in_stride;
  u8* out;  // [rows, cols] or [cols, rows]
  i64 out_stride;
  i64 in_step, out_step;  // from one matrix to the next
  u32 tiles;              // of each matrix; the grid has those of all
};

// Loads the first `count` of 8 bytes, with zeros after them.
INGOT_DEVICE U32x2 load_bytes(const u8* source, u32 count) {
  u64 bytes = 0;
  INGOT_UNROLL
  for (u32 i = 0; i < kVec8; ++i) {
    if (i < count) bytes |= u64{source[i]} << (8 * i);
  }
  return {static_cast<u32>(bytes), static_cast<u32>(bytes >> 32)};
}

// The kernel's template arguments that are not types.
struct RelayoutConfig {
  bool transposed = false;
};

template <RelayoutConfig C>
INGOT_KERNEL void INGOT_LAUNCH_BOUNDS(CastTilesLaunch::kThreads, 4) relayout(const RelayoutParams p) {
  start_in_turn();
  __shared__ CastTilesShared shared;
  const u32 matrix = blockIdx.x / p.tiles;
  const u8* const in = p.in + i64{matrix} * p.in_step;
  const SourceParams source{.input = in, .rows = p.rows, .cols = p.cols, .input_stride = p.in_stride, .operands = {}};
  const TilePosition at = TilePosition::of(source, blockIdx.x - matrix * p.tiles);
  const u32 width = at.width();
  const u8* const from = in + ((at.first_row + at.row) * p.in_stride + at.first_col + at.col);
  const bool vectorised = rows_aligned<u8>(in, p.in_stride, kVec8) && width == kVec8;
  U32x2 codes[kRowsPerRun] = {};
  INGOT_UNROLL
  for (u32 r = 0; r < kRowsPerRun; ++r) {
    if (at.row + r >= at.rows) continue;
    codes[r] = vectorised ? *reinterpret_cast<const U32x2*>(from + r * p.in_stride)
                          : load_bytes(from + r * p.in_stride, width);
  }
  const CastOutput out{.codes = p.out + i64{matrix} * p.out_step,
                       .stride = p.out_stride,
                       .from = nullptr,
                       .from_count = 0,
                       .factors = nullptr,
                       .amax = nullptr,
                       .readers = nullptr};
  if constexpr (C.transposed) {
    store_transposed(out, at, codes, shared);
  } else {
    const CodesTarget target = CodesTarget::of(out, at);
    INGOT_UNROLL
    for (u32 r = 0; r < kRowsPerRun; ++r) target.store(r, codes[r]);
  }
}

}  // namespace ingot
