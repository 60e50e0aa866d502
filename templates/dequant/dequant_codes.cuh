// Single codes of a weight: where a code is in row-major and in packed storage. For uses that need no speed: packing,
// the CPU reference, and the ends of rows.
#pragma once

#include "dequant/dequant_layout.cuh"
#include "formats.cuh"
#include "platform.cuh"

namespace ingot {

// The bytes from one row to the next; the stride is a multiple of as many codes as fill whole bytes.
template <CodeFormat W>
INGOT_HOST_DEVICE constexpr i64 code_row_bytes(i64 row_stride) {
  return row_stride * i64{kCodeBits<W>} / 8;
}

// Code i of the row that begins at `row`: bits [i b, i b + b), the least significant first.
template <CodeFormat W>
INGOT_HOST_DEVICE u8 code_at(const u8* row, i64 i) {
  if constexpr (kCodeBits<W> == 8) {
    return row[i];
  } else {
    constexpr u32 kBits = kCodeBits<W>;
    const i64 first = i * i64{kBits};
    const u32 shift = static_cast<u32>(first % 8);
    const u8* const at = row + first / 8;
    const u32 bits = shift + kBits > 8 ? at[0] | u32{at[1]} << 8 : u32{at[0]};
    return static_cast<u8>(bits >> shift & ((1U << kBits) - 1U));
  }
}

// The code at (row, k) of a packed weight; `depth` is the weight's K.
template <CodeFormat W>
INGOT_HOST_DEVICE u8 packed_code_at(CodeLayout layout, const u8* packed, i64 depth, i64 row, i64 k) {
  const u32 warp = static_cast<u32>(row / 16 % 4);
  const u32 lane = static_cast<u32>(row % 8 * 4 + k % 8 / 2);
  const u32 reg = static_cast<u32>(k / 16 % 2 * 4 + k / 8 % 2 * 2 + row / 8 % 2);
  const u8* const fragment = packed +
                             packed_tile_offset<W>(static_cast<u64>(row) / kDequantRows,
                                                   static_cast<u64>(k) / kDequantDepth, static_cast<u64>(depth)) +
                             packed_fragment_offset<W>(warp, lane);
  const FragmentRuns positions = fragment_runs<W>(layout, reg);
  u32 code = 0;
  INGOT_UNROLL
  for (const FragmentRun& run : positions.runs) {
    // A run is within one half of a word; words are little-endian.
    const u8* const half = fragment + 4 * run.word + 2 * ((k + run.other) % 2);
    code |= ((half[0] | u32{half[1]} << 8) >> run.at & ((1U << run.count) - 1U)) << run.from;
  }
  return static_cast<u8>(code);
}

template <CodeFormat W>
INGOT_HOST_DEVICE constexpr bool is_nan_code(u8 code) {
  if constexpr (SubByteFormat<W>) {
    return false;
  } else if constexpr (W::kFnuz) {
    return code == W::kNanCode;
  } else {
    return (code & 0x7fU) > (W::kHasInf ? W::kMaxCode + 1 : W::kMaxCode);
  }
}

}  // namespace ingot
