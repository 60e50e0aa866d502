// The codes of a tile: how a thread encodes its 8 x 8 values, stores the codes, and puts the transposed ones through
// shared memory.
#pragma once

#include "cast/cast_output.cuh"
#include "cast/cast_tile_results.cuh"
#include "cast/cast_tile_scales.cuh"
#include "cast/cast_tile_shared.cuh"
#include "memory.cuh"
#include "numerics.cuh"
#include "platform.cuh"
#include "scaling.cuh"
#include "vec8.cuh"

namespace ingot {

// Transposes 4 x 4 bytes: byte c of rows[r] becomes byte r of columns[c].
INGOT_DEVICE void transpose_bytes(const u32 (&rows)[4], u32 (&columns)[4]) {
  const u32 low01 = __byte_perm(rows[0], rows[1], 0x5140);   // a0 b0 a1 b1
  const u32 low23 = __byte_perm(rows[2], rows[3], 0x5140);   // c0 d0 c1 d1
  const u32 high01 = __byte_perm(rows[0], rows[1], 0x7362);  // a2 b2 a3 b3
  const u32 high23 = __byte_perm(rows[2], rows[3], 0x7362);  // c2 d2 c3 d3
  columns[0] = __byte_perm(low01, low23, 0x5410);
  columns[1] = __byte_perm(low01, low23, 0x7632);
  columns[2] = __byte_perm(high01, high23, 0x5410);
  columns[3] = __byte_perm(high01, high23, 0x7632);
}

// Where a thread's rows of codes go.
struct CodesTarget {
  u8* first;
  i64 stride;
  u32 rows, width;  // in the matrix
  bool vectorised;

  INGOT_DEVICE static CodesTarget of(const CastOutput& output, const TilePosition& at) {
    const u32 width = at.width();
    return {static_cast<u8*>(output.codes) + (at.first_row + at.row) * output.stride + at.first_col + at.col,
            output.stride, at.rows - min_of(at.rows, at.row), width,
            rows_aligned<u8>(output.codes, output.stride, kVec8) && width == kVec8};
  }
  INGOT_DEVICE void store(u32 r, U32x2 codes) const {
    if (r >= rows) return;
    if (vectorised) {
      store_streaming(first + r * stride, codes);
    } else {
      store_bytes(first + r * stride, codes, width);
    }
  }
};

INGOT_DEVICE void store_word(u8* target, u32 word) {
  struct alignas(4) INGOT_MAY_ALIAS Word {
    u32 bits;
  };
  *reinterpret_cast<Word*>(target) = {word};
}
// The first `count` bytes of a word: fewer than 4.
INGOT_DEVICE void store_few_bytes(u8* target, u32 word, u32 count) {
  INGOT_UNROLL
  for (u32 b = 0; b < 3; ++b) {
    if (b < count) store_global(target + b, static_cast<u8>(word >> (8 * b)));
  }
}

// Encodes the values into `codes`, and stores them row by row if `Store`: a row that is not used afterwards then takes
// no registers.
template <Fp8Format Out, bool Store, bool Given, Granularity Scale, HighPrecision Value>
INGOT_DEVICE void quantize_tile(const CastOutput& output, const TilePosition& at,
                                const Vec8<Value> (&values)[kRowsPerRun], const ThreadScales<Scale>& scales,
                                U32x2 (&codes)[kRowsPerRun]) {
  const CodesTarget target = CodesTarget::of(output, at);
  INGOT_UNROLL
  for (u32 r = 0; r < kRowsPerRun; ++r) {
    codes[r] = quantize<Out, Given>(values[r], [&](u32 c) { return scales.at(r, c); });
    if constexpr (Store) target.store(r, codes[r]);
  }
}

// The same without storing the codes, and with the sums of the thread's columns if Sum: the values are unpacked once
// for both.
template <Fp8Format Out, bool Given, bool Sum, Granularity Scale, HighPrecision Value>
INGOT_DEVICE void quantize_rows(const Vec8<Value> (&values)[kRowsPerRun], const ThreadScales<Scale>& scales,
                                U32x2 (&codes)[kRowsPerRun], float (&sums)[kVec8]) {
  INGOT_UNROLL
  for (u32 r = 0; r < kRowsPerRun; ++r) {
    codes[r] = quantize<Out, Given>(values[r], [&](u32 c) { return scales.at(r, c); });
    if constexpr (Sum) add_row(values[r], sums);
  }
}
// Likewise, where `largest` is the thread's maximum. scaled_by_given() makes NaN of an Inf, and +0 of 0 times a scale
// below zero. Nearly all threads have neither; for them the product is the same, and cheaper.
template <Fp8Format Out, bool Given, bool Sum, Granularity Scale, HighPrecision Value>
INGOT_DEVICE void quantize_and_sum(const Vec8<Value> (&values)[kRowsPerRun], u32 largest,
                                   const ThreadScales<Scale>& scales, U32x2 (&codes)[kRowsPerRun],
                                   float (&sums)[kVec8]) {
  if constexpr (Given && (kDeviceArch == 0 || has_hardware_encode<Out>())) {  // elsewhere encoding is long
    u32 signs = 0;
    INGOT_UNROLL
    for (const float scale : scales.values) signs |= float_bits(scale);
    if (largest < kF32Inf && signs >> 31 == 0) {
      return quantize_rows<Out, false, Sum>(values, scales, codes, sums);
    }
  }
  quantize_rows<Out, Given, Sum>(values, scales, codes, sums);
}

// Stores the codes of rows that start anywhere by the words of 4 bytes that the memory has, and by single bytes at the
// two ends of the tile's row. Threads of a row are side by side in a warp, and each hands the bytes ahead of its first
// word on to the one before it. All threads of a warp call it.
INGOT_DEVICE void store_codes_by_words(const CastOutput& output, const TilePosition& at,
                                       const U32x2 (&codes)[kRowsPerRun]) {
  constexpr u32 kWord = 4;
  u8* row = static_cast<u8*>(output.codes) + (at.first_row + at.row) * output.stride + at.first_col;
  INGOT_UNROLL
  for (u32 r = 0; r < kRowsPerRun; ++r, row += output.stride) {
    hide(row);
    const u32 next = __shfl_sync(0xffffffffU, codes[r].x, threadIdx.x + 1);  // past the tile in a row's last thread
    if (at.row + r >= at.rows) continue;
    const u32 ahead = (0U - static_cast<u32>(reinterpret_cast<u64>(row))) % kWord;
    const u32 selector = 0x3210U + 0x1111U * ahead;
    u32 word = __byte_perm(codes[r].x, codes[r].y, selector);
    const u32 second = __byte_perm(codes[r].y, next, selector);
    const u32 first = at.col + ahead;
    u8* to = row + first;
    if (first + 2 * kWord <= at.cols) {
      store_word(to, word);
      store_word(to + kWord, second);
    } else if (first < at.cols) {
      u32 left = at.cols - first;
      if (left >= kWord) {
        store_word(to, word);
        word = second;
        to += kWord;
        left -= kWord;
      }
      store_few_bytes(to, word, left);
    }
    if (at.col == 0) store_few_bytes(row, codes[r].x, min_of(ahead, at.cols));
  }
}

// By words, or 8 bytes at a time where all rows start at multiples of 8 bytes.
template <bool Words>
INGOT_DEVICE void store_codes(const CastOutput& output, const TilePosition& at, const U32x2 (&codes)[kRowsPerRun]) {
  if constexpr (Words) {
    if (!rows_aligned<u8>(output.codes, output.stride, kVec8)) return store_codes_by_words(output, at, codes);
  }
  CodesTarget target = CodesTarget::of(output, at);
  if (at.whole() && rows_aligned<u8>(output.codes, output.stride, kVec8)) {
    u8* to = target.first;
    INGOT_UNROLL
    for (u32 r = 0; r < kRowsPerRun; ++r, to += target.stride) {
      hide(to);
      store_streaming(to, codes[r]);
    }
  } else {
    hide(target.rows);  // no comparison for this side comes before the branch
    hide(target.width);
    target.vectorised = target.vectorised && target.width == kVec8;
    INGOT_UNROLL
    for (u32 r = 0; r < kRowsPerRun; ++r) target.store(r, codes[r]);
  }
}

// Transposes the thread's codes into the staged tile. All threads of the block call it.
template <bool Unaligned>
INGOT_DEVICE void stage_transposed(const TilePosition& at, const U32x2 (&codes)[kRowsPerRun], CastTilesShared& shared) {
  [[maybe_unused]] const u32 first = StagedTile::half_slot(at.col, at.row / kRowsPerRun);
  INGOT_UNROLL
  for (u32 side = 0; side < 2; ++side) {
    u32 rows[2][4];
    u32 columns[2][4];
    INGOT_UNROLL
    for (u32 r = 0; r < kRowsPerRun; ++r) rows[r / 4][r % 4] = side == 0 ? codes[r].x : codes[r].y;
    transpose_bytes(rows[0], columns[0]);
    transpose_bytes(rows[1], columns[1]);
    INGOT_UNROLL
    for (u32 c = 0; c < 4; ++c) {
      const u32 col = side * 4 + c;
      // All eight columns are swizzled alike.
      u8* const target = shared.bytes + (Unaligned ? first + col * StagedTile::kColumnBytes
                                                   : StagedTile::half_slot(at.col + col, at.row / kRowsPerRun));
      *reinterpret_cast<U32x2*>(target) = U32x2{columns[0][c], columns[1][c]};
    }
  }
  __syncthreads();
}

INGOT_DEVICE void store_transposed(const CastOutput& output, const TilePosition& at, const U32x2 (&codes)[kRowsPerRun],
                                   CastTilesShared& shared) {
  stage_transposed<false>(at, codes, shared);
  constexpr u32 kSlots = 128 / 16;
  const u32 slot = threadIdx.x % kSlots;
  u8* const target = static_cast<u8*>(output.codes) + at.first_col * output.stride + at.first_row + slot * 16;
  const bool whole = rows_aligned<u8>(output.codes, output.stride, 16) && slot * 16 + 16 <= at.rows;
  INGOT_UNROLL
  for (u32 first = 0; first < 128; first += CastTilesLaunch::kThreads / kSlots) {
    const u32 col = first + threadIdx.x / kSlots;
    if (col >= at.cols) break;
    U32x4 bytes = *reinterpret_cast<const U32x4*>(shared.bytes + StagedTile::slot(col, slot));
    if (first >= 64) bytes = {bytes.z, bytes.w, bytes.x, bytes.y};
    u8* const column = target + col * output.stride;
    if (whole) {
      store_streaming(column, bytes);
    } else if (slot * 16 < at.rows) {
      const u32 left = at.rows - slot * 16;
      store_bytes(column, {bytes.x, bytes.y}, min_of(left, 8U));
      if (left > 8) store_bytes(column + 8, {bytes.z, bytes.w}, min_of(left - 8, 8U));
    }
  }
}

}  // namespace ingot
