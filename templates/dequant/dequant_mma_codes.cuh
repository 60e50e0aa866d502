// How dequant_mma loads a weight's codes into a warp's registers: 16 rows and 64 k at a time, in two halves of 32 k. A
// lane has rows g and g + 8, with g = lane / 4.
//
// Packed codes: a half is one fragment of a lane (dequant_fragment.cuh), and the registers have k in the order that the
// instruction wants.
//
// Codes in rows: a lane loads eight neighbouring codes of each of its rows, from 8 t on with t = lane % 4, so that four
// lanes read whole sectors. This changes the order of k within a half, and x is loaded in the same order: what the
// instruction takes for k = 2 t, 2 t + 1, 2 t + 8 and 2 t + 9 of step s are codes 4 s to 4 s + 3 of those eight. Codes
// of 6 and 4 bits become e4m3fn codes with the same bits, which are the values times a power of two. Rows have no
// faults stored with them, so NaN codes are detected here.
#pragma once

#include "dequant/dequant_codes.cuh"
#include "dequant/dequant_fragment.cuh"
#include "memory.cuh"
#include "platform.cuh"

namespace ingot {

struct INGOT_MAY_ALIAS CodeWord {
  u32 bits;
};
struct INGOT_MAY_ALIAS CodeHalfWord {
  u16 bits;
};

// Where the codes are, and how many there are.
struct DequantCodesSource {
  const u8* data;
  i64 n, k;
  i64 row_bytes;  // bytes from one row to the next; for codes in rows
  u32 vectors;    // may eight codes be loaded in words, in every row? for codes in rows
};

// ---- packed ----

template <CodeFormat W, CodeLayout L>
struct PackedCodes {
  using Decoded = W;
  static constexpr int kShift = 0;
  u32 words[2][Fragment<W>::kWords];

  // Codes past the last k or row, beyond the padding, are zeros.
  INGOT_DEVICE static PackedCodes load(const DequantCodesSource& source, i64 row, i64 k, u32 lane) {
    PackedCodes codes{};
    const u64 depth = static_cast<u64>(source.k);
    if (static_cast<u64>(k) >= dequant_padded(depth)) return codes;
    if (static_cast<u64>(row) >= dequant_padded(static_cast<u64>(source.n))) return codes;
    const u8* const from =
        source.data +
        packed_tile_offset<W>(static_cast<u64>(row) / kDequantRows, static_cast<u64>(k) / kDequantDepth, depth) +
        packed_fragment_offset<W>(static_cast<u32>(row / 16 % 4), lane);
    INGOT_UNROLL
    for (u32 half = 0; half < 2; ++half) load_fragment(from + half * kDequantTileBytes<W>, codes.words[half]);
    return codes;
  }

  INGOT_DEVICE static void load_fragment(const u8* from, u32 (&words)[Fragment<W>::kWords]) {
    if constexpr (Fragment<W>::kWords == 4) {
      const U32x4 all = load16_once(from);
      words[0] = all.x;
      words[1] = all.y;
      words[2] = all.z;
      words[3] = all.w;
    } else if constexpr (Fragment<W>::kWords == 2) {
      const U32x2 all = *reinterpret_cast<const U32x2*>(from);
      words[0] = all.x;
      words[1] = all.y;
    } else {
      INGOT_UNROLL
      for (u32 i = 0; i < Fragment<W>::kWords; ++i) words[i] = reinterpret_cast<const CodeWord*>(from)[i].bits;
    }
  }

  template <DequantActivation X>
  INGOT_DEVICE void decode(u32 half, u32 (&registers)[8]) const {
    decode_fragment<W, X, L>(words[half], registers);
  }
};

// ---- in rows ----

// Byte i of the result is byte s of a (s = 0 to 3) or b (4 to 7), where s is hexadecimal digit i of Selector.
template <u32 Selector>
INGOT_DEVICE u32 merge_bytes(u32 a, u32 b) {
#if INGOT_ON_DEVICE
  return ptx::prmt<Selector>(a, b);
#else
  u32 result = 0;
  for (u32 i = 0; i < 4; ++i) {
    const u32 digit = Selector >> (4 * i) & 7U;
    result |= ((digit < 4 ? a : b) >> (8 * (digit % 4)) & 0xffU) << (8 * i);
  }
  return result;
#endif
}

// A byte's sign bit is set in the result if its code is a NaN.
template <Fp8Format W>
INGOT_HOST_DEVICE u32 nan_bytes(u32 codes) {
  const u32 magnitudes = codes & 0x7f7f7f7fU;
  if constexpr (W::kFnuz) {
    return codes & ~(magnitudes + 0x7f7f7f7fU);
  } else {
    return magnitudes + (W::kHasInf ? 0x7eU - W::kMaxCode : 0x7fU - W::kMaxCode) * 0x01010101U;
  }
}

template <CodeFormat W>
struct RowCodes {
  // Codes are decoded as this format: value = decoded * 2^kShift.
  using Decoded = typename Select<Fp8Format<W>, W, e4m3fn>::Type;
  static constexpr int kShift = Decoded::kBias - W::kBias;
  u64 codes[2][2];  // [half][row]: eight codes, the first in the lowest bits

  // Codes outside the weight are zeros.
  INGOT_DEVICE static RowCodes load(const DequantCodesSource& source, i64 row, i64 k, u32 lane) {
    RowCodes loaded{};
    INGOT_UNROLL
    for (u32 i = 0; i < 2; ++i) {
      const i64 n = row + lane / 4 + 8 * i;
      if (n >= source.n) continue;
      const u8* const from = source.data + n * source.row_bytes;
      INGOT_UNROLL
      for (u32 half = 0; half < 2; ++half) {
        const i64 first = k + 32 * half + lane % 4 * 8;
        if (source.vectors != 0 && first + 8 <= source.k) {
          loaded.codes[half][i] = load_eight(from + first * kCodeBits<W> / 8);
        } else {
          INGOT_UNROLL_BY(1)
          for (u32 c = 0; c < 8 && first + c < source.k; ++c) {
            loaded.codes[half][i] |= u64{code_at<W>(from, first + c)} << (c * kCodeBits<W>);
          }
        }
      }
    }
    return loaded;
  }

  INGOT_DEVICE static u64 load_eight(const u8* from) {
    if constexpr (kCodeBits<W> == 8) {
      const U32x2 words = *reinterpret_cast<const U32x2*>(from);
      return words.x | u64{words.y} << 32;
    } else if constexpr (kCodeBits<W> == 6) {
      const CodeHalfWord* const halves = reinterpret_cast<const CodeHalfWord*>(from);
      return halves[0].bits | u64{halves[1].bits} << 16 | u64{halves[2].bits} << 32;
    } else {
      return reinterpret_cast<const CodeWord*>(from)->bits;
    }
  }

  // Codes 4 s to 4 s + 3 of a row, each in a byte, as Decoded.
  INGOT_DEVICE static u32 four_codes(u64 eight, u32 s) {
    if constexpr (kCodeBits<W> == 8) {
      return static_cast<u32>(eight >> (32 * s));
    } else if constexpr (kCodeBits<W> == 6) {
      const u32 packed = static_cast<u32>(eight >> (24 * s));
      const u32 bytes =
          (packed & 0x3fU) | (packed & 0xfc0U) << 2 | (packed & 0x3f000U) << 4 | (packed & 0xfc0000U) << 6;
      constexpr u32 kUp = Decoded::kMantissaBits - W::kMantissaBits;
      return (bytes & 0x20202020U) << 2 | (bytes & 0x1f1f1f1fU) << kUp;
    } else {
      u32 bytes = static_cast<u32>(eight >> (16 * s)) & 0xffffU;
      bytes = (bytes | bytes << 8) & 0x00ff00ffU;
      bytes = (bytes | bytes << 4) & 0x0f0f0f0fU;
      return (bytes & 0x08080808U) << 4 | (bytes & 0x07070707U) << 2;
    }
  }

  template <DequantActivation X>
  INGOT_DEVICE void decode(u32 half, u32 (&registers)[8]) const {
    u32 words[4];
    u32 nans = 0;
    INGOT_UNROLL
    for (u32 s = 0; s < 2; ++s) {
      const u32 upper = four_codes(codes[half][0], s);
      const u32 lower = four_codes(codes[half][1], s);
      words[2 * s] = merge_bytes<0x5140>(lower, upper);
      words[2 * s + 1] = merge_bytes<0x7362>(lower, upper);
      if constexpr (Fp8Format<W>) nans |= nan_bytes<W>(upper) | nan_bytes<W>(lower);
    }
    decode_fragment<Decoded, X, CodeLayout::row_major>(words, registers);
    if constexpr (Fp8Format<W>) {
      if ((nans & 0x80808080U) != 0) put_nans(words, registers);
    }
  }

  // Puts NaN into the registers where a code is NaN: 0x7fff is NaN in bf16 and in f16.
  INGOT_DEVICE static void put_nans(const u32 (&words)[4], u32 (&registers)[8]) {
    INGOT_UNROLL
    for (u32 i = 0; i < 4; ++i) {
      const u32 nan = nan_bytes<W>(words[i]);
      if ((nan & 0x8000U) != 0) registers[2 * i] |= 0x7fffU;
      if ((nan & 0x80000000U) != 0) registers[2 * i] |= 0x7fff0000U;
      if ((nan & 0x80U) != 0) registers[2 * i + 1] |= 0x7fffU;
      if ((nan & 0x800000U) != 0) registers[2 * i + 1] |= 0x7fff0000U;
    }
  }
};

}  // namespace ingot
