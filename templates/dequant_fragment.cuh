// Weights for products with 16-bit activations: codes of 8, 6 or 4 bits in the order in which the tensor cores take
// their operand A from registers, and how a lane makes those registers of them in a few integer instructions.
//
// Layout. Rows and k are padded to multiples of 64 with zero codes. Tiles of 64 rows x 32 k, [rows / 64][k / 32]; in a
// tile [4 warps][32 lanes] fragments, each of the 16 codes that one lane needs: the warp has 16 rows; with g = lane / 4
// and t = lane % 4, register j of the k16-step s has two codes of neighbouring k = 16 s + 2 t + 8 (j / 2), of the row
// g + 8 (j % 2). That is what mma.m16n8k16 and wgmma.m64nNk16 want alike. Behind all codes come `rows` floats: 1, or
// NaN for a row that has a NaN code, by which a kernel multiplies the row's sums.
//
// Bits of a fragment. Words are read as two halves of 16 bits: in the low half are codes of the first k of a register,
// in the high half, at the same places, those of the second. A decoder moves a code's sign to bit 15 and its exponent
// and mantissa to where the 16-bit format has them. What moves equally far costs one shift and one mask together, and
// what is in place one mask alone: fragment_runs() has the places, and decode_fragment() is made of them.
//   8 bits: word 2 s + p has registers 2 p and 2 p + 1. One is where the 16-bit format has it, the other in what is
//   left over, so that two shifts bring it home (for bf16; 2^8 places were looked at by a program). `packed` has bf16's
//   places; `packed_f16` f16's: bytes, the first register's above the second's, which conversion instructions take, and
//   for e4m3fnuz, of which there is none, bits. Either is decoded for either, at more instructions.
//   6 bits: words 0 to 2 have registers 2 w, where bf16 has them, and 2 w + 1; registers 6 and 7 share the four bits
//           that are left over in each. (Register 4 s + j here.)
//   4 bits: word s has register 0: sign at 15, the rest at 8 to 6; 1: 11, 4 to 2; 2: sign at 5 of the other half, the
//           rest at 14 to 12, so that they move together in a rotation; 3: sign at 9, exponent at 10 and 1, mantissa at
//           0.
//
// What comes out is value * 2^-decode_shift(). For f16 that power of two is left to whoever adds the products up, once
// and exactly: their f32 sums have room for it. bf16's codes would come out as small as its smallest numbers, where
// sums lose bits, so that they are multiplied here, by an instruction for two. Codes of NaN come out as anything; Inf
// as Inf.
#pragma once

#include "formats.cuh"
#include "numerics.cuh"
#include "platform.cuh"
#include "ptx/cvt.cuh"
#include "ptx/integer.cuh"
#include "ptx/packed.cuh"

namespace ingot {

template <class X>
concept DequantActivation = is_same<X, bf16> || is_same<X, f16>;

inline constexpr u32 kDequantRows = 64;        // of a tile
inline constexpr u32 kDequantDepth = 32;       // k of a tile
inline constexpr u32 kDequantPadding = 64;     // rows and k are padded to multiples of it
inline constexpr u32 kDequantFragments = 128;  // of a tile: 4 warps, 32 lanes

// How a weight's codes lie: row by row, or in fragments with the places that suit bf16 or f16. What dequant_mma makes
// of codes in rows are fragments of bytes: `row_major` here.
enum class CodeLayout : u32 { row_major, packed, packed_f16 };

// The 16 codes of one lane: code 8 s + 2 j + h is the h-th of register j of step s.
template <CodeFormat W>
struct Fragment {
  static constexpr u32 kCodes = 16;
  static constexpr u32 kWords = kCodeBits<W> / 2;
  static constexpr u32 kBytes = 4 * kWords;
};

// Bytes of a tile.
template <CodeFormat W>
inline constexpr u32 kDequantTileBytes = kDequantFragments* Fragment<W>::kBytes;

// ---- where things lie
// ------------------------------------------------------------------------------------------------

INGOT_HOST_DEVICE constexpr u64 dequant_padded(u64 size) {
  return ceil_div(size, u64{kDequantPadding}) * kDequantPadding;
}

INGOT_HOST_DEVICE constexpr u64 packed_code_bytes(u64 n, u64 k, u32 bits) {
  return dequant_padded(n) * dequant_padded(k) * bits / 8;
}
// With the rows' faults.
INGOT_HOST_DEVICE constexpr u64 packed_bytes(u64 n, u64 k, u32 bits) {
  return packed_code_bytes(n, k, bits) + 4 * dequant_padded(n);
}

// In bytes: the tile of rows from 64 row_block on and k from 32 k_block on.
template <CodeFormat W>
INGOT_HOST_DEVICE constexpr u64 packed_tile_offset(u64 row_block, u64 k_block, u64 k) {
  return (row_block * (dequant_padded(k) / kDequantDepth) + k_block) * kDequantTileBytes<W>;
}
// In bytes, within its tile.
template <CodeFormat W>
INGOT_HOST_DEVICE constexpr u32 packed_fragment_offset(u32 warp, u32 lane) {
  return (warp * 32 + lane) * Fragment<W>::kBytes;
}

struct FragmentPlace {
  u32 row, k;  // within its tile
};
// Of a lane's code.
INGOT_HOST_DEVICE constexpr FragmentPlace fragment_place(u32 warp, u32 lane, u32 code) {
  const u32 step = code / 8;
  const u32 j = code / 2 % 4;
  return {16 * warp + lane / 4 + 8 * (j % 2), 16 * step + 2 * (lane % 4) + 8 * (j / 2) + code % 2};
}

// ---- codes to fragments and back
// -------------------------------------------------------------------------------------

// A run of a code's bits: `count` of them from `from` on, at `at` of a half of the word: of the code's own half, or of
// the other.
struct FragmentRun {
  u32 word, at, from, count;
  u32 other = 0;
};
struct FragmentRuns {
  FragmentRun runs[4];
  u32 count;
};

// Where FP8's codes of register 2 p (`first`) or 2 p + 1 lie in a word.
template <Fp8Format W>
INGOT_HOST_DEVICE constexpr FragmentRuns fp8_runs(CodeLayout layout, u32 word, bool first) {
  if (layout == CodeLayout::packed && W::kMantissaBits == 3) {
    if (first) return {{{word, 15, 7, 1}, {word, 4, 0, 7}, {}, {}}, 2};
    return {{{word, 11, 7, 1}, {word, 0, 0, 4}, {word, 12, 4, 3}, {}}, 3};
  }
  if (layout == CodeLayout::packed) {
    if (first) return {{{word, 15, 7, 1}, {word, 5, 0, 7}, {}, {}}, 2};
    return {{{word, 12, 7, 1}, {word, 4, 2, 1}, {word, 0, 3, 4}, {word, 13, 0, 2, 1}}, 4};
  }
  if (layout == CodeLayout::packed_f16 && is_same<W, e4m3fnuz>) {
    if (first) return {{{word, 15, 7, 1}, {word, 7, 0, 7}, {}, {}}, 2};
    return {{{word, 14, 7, 1}, {word, 0, 0, 7}, {}, {}}, 2};
  }
  if (first) return {{{word, 15, 7, 1}, {word, 8, 0, 7}, {}, {}}, 2};
  return {{{word, 7, 7, 1}, {word, 0, 0, 7}, {}, {}}, 2};
}

// Where FP6's codes of register 4 s + j lie.
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

// Where the codes of register 4 s + j lie.
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
  for (u32 i = 0; i < 16; ++i) {
    const FragmentRuns places = fragment_runs<W>(layout, i / 2);
    for (u32 run = 0; run < places.count; ++run) {
      const FragmentRun& r = places.runs[run];
      words[r.word] |= (u32{codes[i]} >> r.from & ((1U << r.count) - 1U)) << (r.at + 16 * ((i + r.other) % 2));
    }
  }
}

template <CodeFormat W>
INGOT_HOST_DEVICE constexpr void unpack_fragment(CodeLayout layout, const u32 (&words)[Fragment<W>::kWords],
                                                 u8 (&codes)[16]) {
  for (u32 i = 0; i < 16; ++i) {
    const FragmentRuns places = fragment_runs<W>(layout, i / 2);
    u32 code = 0;
    for (u32 run = 0; run < places.count; ++run) {
      const FragmentRun& r = places.runs[run];
      code |= (words[r.word] >> (r.at + 16 * ((i + r.other) % 2)) & ((1U << r.count) - 1U)) << r.from;
    }
    codes[i] = static_cast<u8>(code);
  }
}

// ---- fragments to registers
// ------------------------------------------------------------------------------------------

// cvt.rn.f16x2.e4m3x2 exists from sm_89 on, and takes bytes.
template <CodeFormat W, DequantActivation X, CodeLayout L>
INGOT_HOST_DEVICE constexpr bool converts_by_instruction() {
  return kDeviceArch >= 890 && is_same<W, e4m3fn> && is_same<X, f16> && L != CodeLayout::packed;
}

// value = decoded * 2^kDecodeShift. The biases' difference, where f16's exponent is longer than the code's.
template <CodeFormat W, DequantActivation X, CodeLayout L>
INGOT_HOST_DEVICE constexpr int decode_shift() {
  if (is_same<X, bf16> || converts_by_instruction<W, X, L>() || W::kExponentBits == 5) return 0;
  return 15 - W::kBias;
}
template <CodeFormat W, DequantActivation X, CodeLayout L>
inline constexpr int kDecodeShift = decode_shift<W, X, L>();

// To the right; the lowest bits of one half become the highest of the other.
template <u32 Count>
INGOT_HOST_DEVICE u32 rotate_word(u32 word) {
#if INGOT_ON_DEVICE
  return ptx::rotate_right<Count>(word);
#else
  return word >> Count | word << (32 - Count);
#endif
}
// `count` bits from `at` on, in both halves.
INGOT_HOST_DEVICE constexpr u32 half_mask(u32 at, u32 count) { return (((1U << count) - 1U) << at) * 0x00010001U; }
inline constexpr u32 kHalfSigns = half_mask(15, 1);

// Each half times 2^Power, which is exact or Inf.
template <int Power>
INGOT_HOST_DEVICE u32 scale_bf16_pair(u32 pair) {
  constexpr u32 kBits = static_cast<u32>(127 + Power) << 7;
#if INGOT_ON_DEVICE
  return ptx::mul_bf16x2(pair, kBits | kBits << 16);
#else
  const float factor = to_float(bf16{static_cast<u16>(kBits)});
  return from_float_pair<bf16>(to_float(bf16{static_cast<u16>(pair)}) * factor,
                               to_float(bf16{static_cast<u16>(pair >> 16)}) * factor);
#endif
}

// Sign, exponent and mantissa are where X has them, and all other bits 0: the value times a power of two, which is
// taken back of bf16. e5m2's Inf is next to its largest number, and 2^16 if no more is done: bf16 overflows there only
// after a detour by 2^112, past which the largest number is its own largest binade.
template <CodeFormat W, DequantActivation X>
INGOT_HOST_DEVICE u32 rebias_pair(u32 pair) {
  if constexpr (is_same<X, f16>) {
    return pair;
  } else if constexpr (W::kHasInf) {
    return scale_bf16_pair<-112>(scale_bf16_pair<97>(scale_bf16_pair<127>(pair)));
  } else {
    return scale_bf16_pair<127 - W::kBias>(pair);
  }
}

// e5m2fnuz as f16: the same bits, the exponent less one. Where that was 0 or 1, the bits below the sign move down
// instead, the leading 1 with them; the larger of the two is right. `wide`: codes in the upper bytes of the halves.
INGOT_HOST_DEVICE u32 lower_exponents(u32 wide) {
  const u32 magnitudes = wide & 0x7f007f00U;
#if INGOT_ON_DEVICE
  const u32 larger = ptx::max_of_sum_s16x2(magnitudes, 0xfc00fc00U, magnitudes >> 1);
#else
  u32 larger = 0;
  for (u32 i = 0; i < 32; i += 16) {
    const i32 magnitude = static_cast<i32>(magnitudes >> i & 0xffffU);
    larger |= static_cast<u32>(max_of(magnitude - 0x400, magnitude >> 1)) << i;
  }
#endif
  return larger | (wide & kHalfSigns);
}

// Brings the codes of one register to where their signs are the highest bits of the halves, and the others begin at
// `Lowest`; all other bits are 0.
template <CodeFormat W, CodeLayout L, u32 Lowest, u32 Reg>
struct RegisterSpread {
  static constexpr FragmentRuns kPlaces = fragment_runs<W>(L, Reg);

  INGOT_HOST_DEVICE static constexpr u32 target(u32 run) {
    const u32 from = kPlaces.runs[run].from;
    return from == kCodeBits<W> - 1 ? 15 : Lowest + from;
  }
  // How far a run rotates to the right.
  INGOT_HOST_DEVICE static constexpr u32 turn(u32 run) {
    return (kPlaces.runs[run].at + 16 * kPlaces.runs[run].other + 32 - target(run)) % 32;
  }
  INGOT_HOST_DEVICE static constexpr bool moves_with(u32 run, u32 other) {
    return kPlaces.runs[run].word == kPlaces.runs[other].word && turn(run) == turn(other);
  }
  // Runs that move together, by the first of them.
  INGOT_HOST_DEVICE static constexpr bool is_first(u32 run) {
    for (u32 i = 0; i < run; ++i) {
      if (moves_with(i, run)) return false;
    }
    return true;
  }
  INGOT_HOST_DEVICE static constexpr u32 mask(u32 run) {
    u32 all = 0;
    for (u32 i = 0; i < kPlaces.count; ++i) {
      if (moves_with(i, run)) all |= half_mask(target(i), kPlaces.runs[i].count);
    }
    return all;
  }
  INGOT_HOST_DEVICE static constexpr bool wraps(u32 run) {
    for (u32 i = 0; i < kPlaces.count; ++i) {
      if (moves_with(i, run) && kPlaces.runs[i].other != 0) return true;
    }
    return false;
  }

  // A shift where that will do.
  template <u32 Run>
  INGOT_HOST_DEVICE static u32 moved(u32 word) {
    constexpr u32 kAt = kPlaces.runs[Run].at;
    if constexpr (wraps(Run)) {
      return rotate_word<turn(Run)>(word);
    } else if constexpr (kAt <= target(Run)) {
      return word << (target(Run) - kAt);
    } else {
      return word >> (kAt - target(Run));
    }
  }

  template <u32 Run = 0>
  INGOT_HOST_DEVICE static u32 run(const u32 (&words)[Fragment<W>::kWords], u32 before = 0) {
    if constexpr (Run == kPlaces.count) {
      return before;
    } else if constexpr (is_first(Run)) {
      return run<Run + 1>(words, before | (moved<Run>(words[kPlaces.runs[Run].word]) & mask(Run)));
    } else {
      return run<Run + 1>(words, before);
    }
  }
};

template <CodeFormat W, CodeLayout L, u32 Lowest, u32 Reg = 0>
INGOT_HOST_DEVICE void spread_fragment(const u32 (&words)[Fragment<W>::kWords], u32 (&registers)[8]) {
  if constexpr (Reg < 8) {
    registers[Reg] = RegisterSpread<W, L, Lowest, Reg>::run(words);
    spread_fragment<W, L, Lowest, Reg + 1>(words, registers);
  }
}

// Where the bits of W below the sign begin, at which they are of X what they are of W.
template <CodeFormat W, DequantActivation X>
inline constexpr u32 kLowestBit = (is_same<X, bf16> ? 7 : 10) - static_cast<u32>(W::kMantissaBits);

// registers[4 s + j]: of step s, two codes as X, the first in the low half, each value * 2^-kDecodeShift.
template <CodeFormat W, DequantActivation X, CodeLayout L>
INGOT_HOST_DEVICE void decode_fragment(const u32 (&words)[Fragment<W>::kWords], u32 (&registers)[8]) {
#if INGOT_ON_DEVICE
  if constexpr (converts_by_instruction<W, X, L>()) {
    INGOT_UNROLL
    for (u32 i = 0; i < 4; ++i) {
      const u32 ordered = ptx::prmt<0x2031>(words[i], 0);
      registers[2 * i] = ptx::cvt_f16x2_e4m3x2(static_cast<u16>(ordered));
      registers[2 * i + 1] = ptx::cvt_f16x2_e4m3x2(static_cast<u16>(ordered >> 16));
    }
    return;
  }
#endif
  spread_fragment<W, L, kLowestBit<W, X>>(words, registers);
  INGOT_UNROLL
  for (u32 i = 0; i < 8; ++i) {
    if constexpr (is_same<W, e5m2fnuz> && is_same<X, f16>) {
      registers[i] = lower_exponents(registers[i]);
    } else {
      registers[i] = rebias_pair<W, X>(registers[i]);
    }
  }
}

// ---- codes times their factor
// -----------------------------------------------------------------------------------------

// A code of 6 or 4 bits times a factor of e8m0 is a bf16, unless it is too large for one: at 2^128 or more, of which no
// f32 knows either. (The smallest, 2^-4 2^-127, is a subnormal number.) So the multiplication that makes bf16s of such
// codes may bring the factor in: then sums need no regard for where a factor ends.
template <CodeFormat W, DequantActivation X>
inline constexpr bool kTakesMxFactors = is_same<X, bf16>&& SubByteFormat<W>;

// What a spread pair is to be multiplied by, for factors up to 127, which is 1, and some beyond.
template <SubByteFormat W>
INGOT_HOST_DEVICE constexpr u32 mx_step(u32 factor) {
  // 2^(127 - bias) 2^(factor - 127), whose exponent has the bias 127.
  return factor * 0x00800080U + static_cast<u32>(127 - W::kBias) * 0x00800080U;
}
// The factor itself, twice: 2^-127 is a subnormal number; 255 is NaN.
INGOT_HOST_DEVICE constexpr u32 mx_factor_pair(u32 factor) {
  const u32 pair = max_of(factor * 0x00800080U, 0x00400040U);
  return factor == 255 ? 0x7fc07fc0U : pair;
}

INGOT_HOST_DEVICE u32 multiply_bf16_pair(u32 a, u32 b) {
#if INGOT_ON_DEVICE
  return ptx::mul_bf16x2(a, b);
#else
  return from_float_pair<bf16>(to_float(bf16{static_cast<u16>(a)}) * to_float(bf16{static_cast<u16>(b)}),
                               to_float(bf16{static_cast<u16>(a >> 16)}) * to_float(bf16{static_cast<u16>(b >> 16)}));
#endif
}

// decode_fragment() with the factors (codes of e8m0) of its two rows, of which row i % 2 is that of register i.
// `Large`: factors may be any, else up to 127.
template <SubByteFormat W, bool Large>
INGOT_HOST_DEVICE void decode_mx_fragment(const u32 (&words)[Fragment<W>::kWords], const u32 (&factors)[2],
                                          u32 (&registers)[8]) {
  spread_fragment<W, CodeLayout::packed, kLowestBit<W, bf16>>(words, registers);
  u32 pairs[2];
  INGOT_UNROLL
  for (u32 i = 0; i < 2; ++i) pairs[i] = Large ? mx_factor_pair(factors[i]) : mx_step<W>(factors[i]);
  INGOT_UNROLL
  for (u32 i = 0; i < 8; ++i) {
    if constexpr (Large) registers[i] = rebias_pair<W, bf16>(registers[i]);
    registers[i] = multiply_bf16_pair(registers[i], pairs[i % 2]);
  }
}

}  // namespace ingot
