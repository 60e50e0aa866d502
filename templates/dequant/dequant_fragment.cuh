// Decodes a fragment's codes (dequant_layout.cuh) to registers of 16-bit values, in a few integer instructions.
//
// The results are value * 2^-decode_shift(). For f16, the kernel multiplies the sum of the products by that power of
// two, once and exactly: f32 sums have room for it. For bf16, codes would come out as small as bf16's smallest numbers,
// where sums lose bits; so they are multiplied here, two per instruction. NaN codes decode to arbitrary values; Inf
// decodes to Inf.
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

// cvt.rn.f16x2.e4m3x2 exists from sm_89 on, and takes whole bytes.
template <CodeFormat W, DequantActivation X, CodeLayout L>
INGOT_HOST_DEVICE constexpr bool converts_by_instruction() {
  return kDeviceArch >= 890 && is_same<W, e4m3fn> && is_same<X, f16> && L != CodeLayout::packed;
}

// value = decoded * 2^decode_shift(): the difference of the biases, where f16's exponent is longer than the code's.
template <CodeFormat W, DequantActivation X, CodeLayout L>
INGOT_HOST_DEVICE constexpr int decode_shift() {
  if (is_same<X, bf16> || converts_by_instruction<W, X, L>() || W::kExponentBits == 5) return 0;
  return 15 - W::kBias;
}
template <CodeFormat W, DequantActivation X, CodeLayout L>
inline constexpr int kDecodeShift = decode_shift<W, X, L>();

// Rotates to the right; the lowest bits of one half become the highest of the other.
template <u32 Count>
INGOT_HOST_DEVICE u32 rotate_word(u32 word) {
#if INGOT_ON_DEVICE
  return ptx::rotate_right<Count>(word);
#else
  return word >> Count | word << (32 - Count);
#endif
}
// A mask of `count` bits from bit `at` on, in both halves.
INGOT_HOST_DEVICE constexpr u32 half_mask(u32 at, u32 count) { return (((1U << count) - 1U) << at) * 0x00010001U; }
inline constexpr u32 kHalfSigns = half_mask(15, 1);

// Multiplies each half by 2^Power; the result is exact or Inf.
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

// The pair has sign, exponent and mantissa where X has them, and zeros elsewhere: it is the value times a power of two,
// which is undone here for bf16. e5m2's Inf is the code after its largest number and would become 2^16. To become Inf
// it takes a detour: scaled by 2^112 too much, it overflows, while the largest number lands in bf16's largest binade.
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

// Turns e5m2fnuz into f16: the same bits with the exponent less one. Where the exponent was 0 or 1, the bits below the
// sign move down by one instead, the leading 1 with them; the larger of the two results is right. `wide` has the codes
// in the upper bytes of its halves.
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

// Moves the codes of one register so that each sign is the highest bit of its half and the other bits begin at
// `Lowest`; all other bits become 0.
template <CodeFormat W, CodeLayout L, u32 Lowest, u32 Reg>
struct RegisterSpread {
  static constexpr FragmentRuns kPlaces = fragment_runs<W>(L, Reg);

  INGOT_HOST_DEVICE static constexpr u32 target(u32 run) {
    const u32 from = kPlaces.runs[run].from;
    return from == kCodeBits<W> - 1 ? 15 : Lowest + from;
  }
  // By how many bits a run rotates to the right.
  INGOT_HOST_DEVICE static constexpr u32 turn(u32 run) {
    return (kPlaces.runs[run].at + 16 * kPlaces.runs[run].other + 32 - target(run)) % 32;
  }
  INGOT_HOST_DEVICE static constexpr bool moves_with(u32 run, u32 other) {
    return kPlaces.runs[run].word == kPlaces.runs[other].word && turn(run) == turn(other);
  }
  // Is this run the first of those that move together?
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

  // Uses a shift unless bits must wrap around.
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

// Where W's bits below the sign must begin so that exponent and mantissa meet those of X.
template <CodeFormat W, DequantActivation X>
inline constexpr u32 kLowestBit = (is_same<X, bf16> ? 7 : 10) - static_cast<u32>(W::kMantissaBits);

// registers[4 s + j] gets, for step s, two codes as X, the first in the low half, each value * 2^-kDecodeShift.
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
      static_assert(is_same<X, bf16> || W::kExponentBits < 5 || W::kBias == 15, "decode_fragment() lacks this format");
      registers[i] = rebias_pair<W, X>(registers[i]);
    }
  }
}

// ---- codes times their scale_inv ----

// A code of 6 or 4 bits times an e8m0 scale_inv is exactly a bf16, unless it is 2^128 or more, which f32 cannot hold
// either. (The smallest, 2^-4 2^-127, is a subnormal number.) So the multiplication that turns such codes into bf16 may
// include the scale_inv; the sums then need not stop where a group ends.
template <CodeFormat W, DequantActivation X>
inline constexpr bool kTakesMxFactors = is_same<X, bf16>&& SubByteFormat<W>;

// The multiplier of a spread pair, for scale_inv up to code 127, which means 1, and some beyond.
template <SubByteFormat W>
INGOT_HOST_DEVICE constexpr u32 mx_step(u32 factor) {
  // 2^(127 - bias) 2^(scale_inv - 127), as the exponent field of a bf16, whose bias is 127.
  return factor * 0x00800080U + static_cast<u32>(127 - W::kBias) * 0x00800080U;
}
// The scale_inv itself, in both halves: 2^-127 is a subnormal number; 255 is NaN.
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

// decode_fragment() that also multiplies by the scale_inv (e8m0 codes) of the fragment's two rows; register i belongs
// to row i % 2. `Large`: scale_inv may have any code; otherwise at most 127.
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
