// The layout of packed weights: codes of 8, 6 or 4 bits, stored in the order in which the tensor cores take their
// operand A from registers. The GEMMs dequant_sm90 and dequant_mma multiply such weights by 16-bit activations;
// pack_weight.cuh packs and unpacks them.
//
// Layout. Rows and k are padded to multiples of 64 with zero codes. Tiles of 64 rows x 32 k are stored in the order
// [rows / 64][k / 32]. A tile is [4 warps][32 lanes] fragments; a fragment is the 16 codes that one lane needs. A warp
// has 16 rows. With g = lane / 4 and t = lane % 4, register j of the k16-step s holds two codes of neighbouring k, from
// k = 16 s + 2 t + 8 (j / 2) on, of row g + 8 (j % 2). Both mma.m16n8k16 and wgmma.m64nNk16 want this order. After all
// codes come `rows` floats, the rows' faults: 1, or NaN for a row that has a NaN code. Kernels multiply a row's sums by
// its fault.
//
// Bits of a fragment. Each word has two halves of 16 bits: the low half holds codes of the first k of a register, the
// high half, at the same bit positions, codes of the second k. A decoder moves a code's sign to bit 15 and its exponent
// and mantissa to where the 16-bit format has them. Bits that move equally far cost one shift and one mask together;
// bits that are already in place cost one mask. fragment_runs() lists the bit positions, from which decode_fragment()
// (dequant_fragment.cuh) is built.
//   8 bits: word 2 s + p holds registers 2 p and 2 p + 1. One is where the 16-bit format has it; the other fills the
//           remaining bits, from which two moves bring it into place. `packed` uses bf16's positions. `packed_f16` uses
//           f16's: whole bytes, the first register's above the second's, as conversion instructions take them; for
//           e4m3fnuz, which has no such instruction, single bits. Either layout can be decoded to either dtype, in
//           more instructions.
//   6 bits: word w (0 to 2) holds register 2 w, where bf16 has it, and register 2 w + 1; registers 6 and 7 share the
//           four bits that remain in each word. (Registers are numbered 4 s + j here.)
//   4 bits: word s holds register 0: sign at 15, the rest at 8 to 6; 1: sign at 11, the rest at 4 to 2; 2: sign at 5 of
//           the other half, the rest at 14 to 12, so that one rotation moves both; 3: sign at 9, exponent at 10 and 1,
//           mantissa at 0.
#pragma once

#include "formats.cuh"
#include "platform.cuh"

namespace ingot {

inline constexpr u32 kDequantRows = 64;        // rows of a tile
inline constexpr u32 kDequantDepth = 32;       // k of a tile
inline constexpr u32 kDequantPadding = 64;     // rows and k are padded to multiples of this
inline constexpr u32 kDequantFragments = 128;  // fragments of a tile: 4 warps, 32 lanes

// How a weight's codes are stored: row by row, or in fragments whose bit positions suit bf16 or f16. `row_major` is
// also the layout of the fragments of bytes that dequant_mma makes of codes in rows.
enum class CodeLayout : u32 { row_major, packed, packed_f16 };

// The 16 codes of one lane: code 8 s + 2 j + h is the h-th of register j of step s.
template <CodeFormat W>
struct Fragment {
  static constexpr u32 kCodes = 16;
  static constexpr u32 kWords = kCodeBits<W> / 2;
  static constexpr u32 kBytes = 4 * kWords;
};

// The bytes of a tile.
template <CodeFormat W>
inline constexpr u32 kDequantTileBytes = kDequantFragments* Fragment<W>::kBytes;

// ---- sizes and offsets -------------------------------------------------------------------------------------------

INGOT_HOST_DEVICE constexpr u64 dequant_padded(u64 size) {
  return ceil_div(size, u64{kDequantPadding}) * kDequantPadding;
}

INGOT_HOST_DEVICE constexpr u64 packed_code_bytes(u64 n, u64 k, u32 bits) {
  return dequant_padded(n) * dequant_padded(k) * bits / 8;
}
// The codes and the rows' faults.
INGOT_HOST_DEVICE constexpr u64 packed_bytes(u64 n, u64 k, u32 bits) {
  return packed_code_bytes(n, k, bits) + 4 * dequant_padded(n);
}

// The offset in bytes of the tile that begins at row 64 row_block and k = 32 k_block.
template <CodeFormat W>
INGOT_HOST_DEVICE constexpr u64 packed_tile_offset(u64 row_block, u64 k_block, u64 k) {
  return (row_block * (dequant_padded(k) / kDequantDepth) + k_block) * kDequantTileBytes<W>;
}
// The offset in bytes of a lane's fragment within its tile.
template <CodeFormat W>
INGOT_HOST_DEVICE constexpr u32 packed_fragment_offset(u32 warp, u32 lane) {
  return (warp * 32 + lane) * Fragment<W>::kBytes;
}

struct FragmentPosition {
  u32 row, k;  // within its tile
};
// The row and k of a lane's code.
INGOT_HOST_DEVICE constexpr FragmentPosition fragment_position(u32 warp, u32 lane, u32 code) {
  const u32 step = code / 8;
  const u32 j = code / 2 % 4;
  return {16 * warp + lane / 4 + 8 * (j % 2), 16 * step + 2 * (lane % 4) + 8 * (j / 2) + code % 2};
}

// ---- codes to fragments and back ----

// A run of neighbouring bits of a code: its bits [from, from + count) are at bit `at` of a half of the word: of the
// code's own half, or (`other` = 1) of the other half.
struct FragmentRun {
  u32 word, at, from, count;
  u32 other = 0;
};
// The runs of one code; unused entries are empty, so that loops over all of them can be unrolled.
struct FragmentRuns {
  static constexpr u32 kMost = 4;
  FragmentRun runs[kMost];
  u32 count;
};

// Where a word has the FP8 codes of register 2 p (`first`) or 2 p + 1.
template <Fp8Format W>
INGOT_HOST_DEVICE constexpr FragmentRuns fp8_runs(CodeLayout layout, u32 word, bool first) {
  static_assert(W::kMantissaBits == 3 || W::kMantissaBits == 2, "fp8_runs() lacks this format");
  if (layout == CodeLayout::packed && W::kMantissaBits == 3) {
    if (first) return {{{word, 15, 7, 1}, {word, 4, 0, 7}, {}, {}}, 2};
    return {{{word, 11, 7, 1}, {word, 0, 0, 4}, {word, 12, 4, 3}, {}}, 3};
  }
  if (layout == CodeLayout::packed) {
    if (first) return {{{word, 15, 7, 1}, {word, 5, 0, 7}, {}, {}}, 2};
    return {{{word, 12, 7, 1}, {word, 4, 2, 1}, {word, 0, 3, 4}, {word, 13, 0, 2, 1}}, 4};
  }
  if (layout == CodeLayout::packed_f16 && W::kFnuz && W::kExponentBits == 4) {
    if (first) return {{{word, 15, 7, 1}, {word, 7, 0, 7}, {}, {}}, 2};
    return {{{word, 14, 7, 1}, {word, 0, 0, 7}, {}, {}}, 2};
  }
  if (first) return {{{word, 15, 7, 1}, {word, 8, 0, 7}, {}, {}}, 2};
  return {{{word, 7, 7, 1}, {word, 0, 0, 7}, {}, {}}, 2};
}

// Where the FP6 codes of register 4 s + j are.
template <SubByteFormat W>
INGOT_HOST_DEVICE constexpr FragmentRuns fp6_runs(u32 reg) {
  constexpr bool kLongMantissa = W::kMantissaBits == 3;
  const u32 word = reg / 2;
  if (reg % 2 == 0 && reg < 6) return {{{word, 15, 5, 1}, {word, kLongMantissa ? 4U : 5U, 0, 5}, {}, {}}, 2};
  if constexpr (kLongMantissa) {
    switch (reg) {
      case 1:
      case 3: return {{{word, 11, 5, 1}, {word, 0, 0, 4}, {word, 9, 4, 1}, {}}, 3};
      case 5: return {{{2, 9, 5, 1}, {2, 12, 0, 3}, {2, 2, 3, 2}, {}}, 3};
      case 6: return {{{2, 10, 5, 1}, {0, 10, 0, 1}, {2, 0, 1, 1}, {0, 12, 2, 3}}, 4};
      default: return {{{2, 11, 5, 1}, {1, 10, 0, 1}, {2, 1, 1, 1}, {1, 12, 2, 3}}, 4};
    }
  }
  if (reg < 6) return {{{word, 10, 5, 1}, {word, 0, 0, 5}, {}, {}}, 2};
  const u32 lowest = reg == 6 ? 13 : 11;
  return {{{2, lowest + 1, 5, 1}, {reg - 6, 11, 1, 4}, {2, lowest, 0, 1}, {}}, 3};
}

// Where the codes of register 4 s + j are.
template <CodeFormat W>
INGOT_HOST_DEVICE constexpr FragmentRuns fragment_runs(CodeLayout layout, u32 reg) {
  constexpr u32 kSign = kCodeBits<W> - 1;
  if constexpr (kCodeBits<W> == 8) {
    return fp8_runs<W>(layout, reg / 2, reg % 2 == 0);
  } else if constexpr (kCodeBits<W> == 6) {
    return fp6_runs<W>(reg);
  } else {
    const u32 word = reg / 4;
    switch (reg % 4) {
      case 0: return {{{word, 15, kSign, 1}, {word, 6, 0, 3}, {}, {}}, 2};
      case 1: return {{{word, 11, kSign, 1}, {word, 2, 0, 3}, {}, {}}, 2};
      case 2: return {{{word, 5, kSign, 1, 1}, {word, 12, 0, 3}, {}, {}}, 2};
      default: return {{{word, 9, kSign, 1}, {word, 0, 0, 2}, {word, 10, 2, 1}, {}}, 3};
    }
  }
}

template <CodeFormat W>
INGOT_HOST_DEVICE constexpr void pack_fragment(CodeLayout layout, const u8 (&codes)[16],
                                               u32 (&words)[Fragment<W>::kWords]) {
  for (u32 i = 0; i < Fragment<W>::kWords; ++i) words[i] = 0;
  INGOT_UNROLL
  for (u32 i = 0; i < 16; ++i) {
    const FragmentRuns positions = fragment_runs<W>(layout, i / 2);
    INGOT_UNROLL
    for (u32 run = 0; run < FragmentRuns::kMost; ++run) {
      const FragmentRun& r = positions.runs[run];
      words[r.word] |= (u32{codes[i]} >> r.from & ((1U << r.count) - 1U)) << (r.at + 16 * ((i + r.other) % 2));
    }
  }
}

template <CodeFormat W>
INGOT_HOST_DEVICE constexpr void unpack_fragment(CodeLayout layout, const u32 (&words)[Fragment<W>::kWords],
                                                 u8 (&codes)[16]) {
  for (u32 i = 0; i < 16; ++i) {
    const FragmentRuns positions = fragment_runs<W>(layout, i / 2);
    u32 code = 0;
    for (const FragmentRun& r : positions.runs) {
      code |= (words[r.word] >> (r.at + 16 * ((i + r.other) % 2)) & ((1U << r.count) - 1U)) << r.from;
    }
    codes[i] = static_cast<u8>(code);
  }
}

}  // namespace ingot
