// How a lane makes registers of 16-bit values of a fragment's codes (dequant_layout.cuh) in a few integer instructions.
//
// What comes out is value * 2^-decode_shift(). For f16 that power of two is left to whoever adds the products up, once
// and exactly: their f32 sums have room for it. bf16's codes would come out as small as its smallest numbers, where
// sums lose bits, so that they are multiplied here, by an instruction for two. Codes of NaN come out as anything; Inf
// as Inf.
#pragma once

#include "dequant/dequant_layout.cuh"
#include "formats.cuh"
#include "numerics.cuh"
#include "platform.cuh"
#include "ptx/cvt.cuh"
#include "ptx/integer.cuh"
#include "ptx/packed.cuh"

namespace ingot {

template <class X>
concept DequantActivation = is_same<X, bf16> || is_same<X, f16>;

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
      ptx::cvt_f16x2_e4m3x4(ptx::prmt<0x2031>(words[i], 0), registers[2 * i], registers[2 * i + 1]);
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

// ---- codes times their factor ----

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
