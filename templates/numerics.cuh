// Bit-exact conversions, the same on host and device: decode (exact) and encode (round to nearest, ties to even) for
// the formats of up to eight bits, for bf16 and for f16. The products and sums here must not be contracted into fma:
// NVRTC runs with --fmad=false, host compilers with -ffp-contract=off.
#pragma once

#include "formats.cuh"
#include "platform.cuh"
#include "ptx/cvt.cuh"

namespace ingot {

inline constexpr u32 kF32Inf = 0x7f800000;
inline constexpr u32 kF32Nan = 0x7fc00000;

INGOT_HOST_DEVICE bool is_nan(float x) { return (float_bits(x) & 0x7fffffffU) > kF32Inf; }

// ---- FP8, FP6 and FP4 --------------------------------------------------------------------------------------------

template <CodeFormat F>
INGOT_HOST_DEVICE float decode(F code) {
  constexpr int kSignBit = F::kExponentBits + F::kMantissaBits;
  const u32 sign = (static_cast<u32>(code.bits >> kSignBit) & 1U) << 31;
  const u32 magnitude = code.bits & ((1U << kSignBit) - 1U);
  if constexpr (F::kFnuz) {
    if (code.bits == F::kNanCode) return float_from_bits(kF32Nan);
  } else if constexpr (Fp8Format<F>) {
    if (magnitude > F::kMaxCode)
      return float_from_bits(sign | (F::kHasInf && magnitude == F::kMaxCode + 1 ? kF32Inf : kF32Nan));
  }
  // The code's exponent and mantissa, moved to where f32 has them, represent the value times 2^(bias - 127). A
  // subnormal code becomes a subnormal float, and the product below is exact.
  const float scaled = float_from_bits(sign | (magnitude << (23 - F::kMantissaBits)));
  constexpr u32 kRebias = static_cast<u32>(254 - F::kBias) << 23;  // 2^(127 - bias)
  return scaled * float_from_bits(kRebias);
}

// Rounds to nearest even and saturates: |x| above the largest finite value, Inf included, gives that value. NaN gives
// kNanCode, or the code of 0 in the formats of less than a byte, which have no NaN. For the two OCP formats of FP8 this
// equals cvt.rn.satfinite.
template <CodeFormat F>
INGOT_HOST_DEVICE F encode_software(float x) {
  constexpr int kSignBit = F::kExponentBits + F::kMantissaBits;
  constexpr int kDropped = 23 - F::kMantissaBits;
  constexpr u32 kMinNormal = static_cast<u32>(127 + 1 - F::kBias) << 23;
  const u32 bits = float_bits(x);
  const u32 magnitude = bits & 0x7fffffffU;
  const u32 sign = (bits >> 31) << kSignBit;
  if (magnitude > kF32Inf) {
    if constexpr (Fp8Format<F>) {
      return F{static_cast<u8>(F::kNanCode)};
    } else {
      return F{0};
    }
  }
  u32 code = 0;
  if (magnitude < kMinNormal) {
    // Adding a power of two whose last place is the format's smallest subnormal makes f32's own rounding round at that
    // place. What remains in the low bits is the code, including 2^mantissa_bits, the smallest normal.
    constexpr u32 kMagic = static_cast<u32>(127 + 1 - F::kBias + kDropped) << 23;
    code = float_bits(float_from_bits(magnitude) + float_from_bits(kMagic)) - kMagic;
  } else {
    // Adding half of the dropped part minus one, plus the last kept bit, carries exactly where nearest-even rounds up.
    // A carry into the exponent gives the next binade, as it should.
    const u32 rounded = magnitude + ((1U << (kDropped - 1)) - 1U) + ((magnitude >> kDropped) & 1U);
    code = (rounded - (static_cast<u32>(127 - F::kBias) << 23)) >> kDropped;
    code = min_of(code, F::kMaxCode);
  }
  if (F::kFnuz && code == 0) return F{0};
  return F{static_cast<u8>(sign | code)};
}

// cvt.rn.satfinite exists from sm_89 on, for the two OCP formats.
template <Fp8Format F>
INGOT_HOST_DEVICE constexpr bool has_hardware_encode() {
  return kDeviceArch >= 890 && OcpFormat<F>;
}

// Encodes two floats, `low` in the low byte.
template <Fp8Format F>
INGOT_HOST_DEVICE u16 encode_pair(float low, float high) {
#if INGOT_ON_DEVICE
  if constexpr (has_hardware_encode<F>()) {
    if constexpr (is_same<F, e4m3fn>) {
      return ptx::cvt_e4m3x2(low, high);
    } else {
      static_assert(is_same<F, e5m2>, "this format needs its conversion of ptx/cvt.cuh here");
      return ptx::cvt_e5m2x2(low, high);
    }
  }
#endif
  return static_cast<u16>(encode_software<F>(low).bits | (encode_software<F>(high).bits << 8));
}

template <CodeFormat F>
INGOT_HOST_DEVICE F encode(float x) {
#if INGOT_ON_DEVICE
  if constexpr (Fp8Format<F>) {
    if constexpr (has_hardware_encode<F>()) return F{static_cast<u8>(encode_pair<F>(x, 0.0F))};
  }
#endif
  return encode_software<F>(x);
}

// encode() for an x that is not NaN, without a branch: half the instructions, for kernels that encode everything they
// read. It returns the code as a word, which saves a mask too.
template <SubByteFormat F>
INGOT_HOST_DEVICE u32 encode_number(float x) {
  constexpr int kSignBit = F::kExponentBits + F::kMantissaBits;
  constexpr int kDropped = 23 - F::kMantissaBits;
  constexpr u32 kLargest = __builtin_bit_cast(u32, static_cast<float>(F::kMax));
  constexpr u32 kMinNormal = static_cast<u32>(127 + 1 - F::kBias) << 23;
  constexpr u32 kRebias = static_cast<u32>(F::kBias) << 23;  // 2^(bias - 127): decode()'s product undone
  const u32 bits = float_bits(x);
  const u32 magnitude = min_of(bits & 0x7fffffffU, kLargest);
  // A power of two whose last place is that of x in the format, as in encode_software()'s subnormal step.
  const float magic = float_from_bits(max_of(magnitude & kF32Inf, kMinNormal) + (static_cast<u32>(kDropped) << 23));
  const float rounded = (float_from_bits(magnitude) + magic) - magic;
  const u32 code = float_bits(rounded * float_from_bits(kRebias)) >> kDropped;
  return ((bits >> (31 - kSignBit)) & (1U << kSignBit)) | code;
}

// 2^(bits - 127), or NaN.
INGOT_HOST_DEVICE float decode(e8m0fnu code) {
  if (code.bits == 0xff) return float_from_bits(kF32Nan);
  // 2^-127 is a subnormal float.
  return float_from_bits(code.bits == 0 ? 0x00400000U : static_cast<u32>(code.bits) << 23);
}

// ---- bf16 and f16 ------------------------------------------------------------------------------------------------

INGOT_HOST_DEVICE float to_float(float x) { return x; }

INGOT_HOST_DEVICE float to_float(bf16 x) { return float_from_bits(static_cast<u32>(x.bits) << 16); }

INGOT_HOST_DEVICE float to_float(f16 x) {
#if INGOT_ON_DEVICE
  return ptx::cvt_f32_f16(x.bits);
#else
  const u32 sign = static_cast<u32>(x.bits & 0x8000U) << 16;
  const u32 magnitude = x.bits & 0x7fffU;
  if (magnitude >= 0x7c00U) return float_from_bits(sign | kF32Inf | ((magnitude & 0x3ffU) != 0 ? 0x400000U : 0U));
  // As in decode(): exponent and mantissa where f32 has them, times 2^(127 - 15).
  return float_from_bits(sign | (magnitude << 13)) * 0x1p112F;
#endif
}

template <CodeFormat F>
INGOT_HOST_DEVICE float to_float(F code) {
  return decode(code);
}
INGOT_HOST_DEVICE float to_float(e8m0fnu code) { return decode(code); }

// from_float<T>(x) rounds to nearest even. Overflow gives Inf, as in IEEE 754. NaN gives a single NaN: for bf16 and f16
// the one that the hardware's conversions give.
template <class T>
struct FromFloat;

template <>
struct FromFloat<f32> {
  INGOT_HOST_DEVICE static f32 convert(float x) { return is_nan(x) ? float_from_bits(kF32Nan) : x; }
};

template <>
struct FromFloat<bf16> {
  INGOT_HOST_DEVICE static bf16 convert(float x) {
    const u32 bits = float_bits(x);
    if ((bits & 0x7fffffffU) > kF32Inf) return bf16{0x7fff};
    return bf16{static_cast<u16>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16)};
  }
};

template <>
struct FromFloat<f16> {
  INGOT_HOST_DEVICE static f16 convert(float x) {
    const u32 bits = float_bits(x);
    const u32 magnitude = bits & 0x7fffffffU;
    const u32 sign = (bits >> 16) & 0x8000U;
    if (magnitude > kF32Inf) return f16{0x7fff};
    u32 code = 0;
    if (magnitude < 0x38800000U) {  // below 2^-14, the smallest normal: encode_software()'s subnormal step
      constexpr u32 kMagic = static_cast<u32>(127 - 14 + 13) << 23;
      code = float_bits(float_from_bits(magnitude) + float_from_bits(kMagic)) - kMagic;
    } else {
      const u32 rounded = magnitude + 0xfffU + ((magnitude >> 13) & 1U);
      code = min_of((rounded - (112U << 23)) >> 13, 0x7c00U);
    }
    return f16{static_cast<u16>(sign | code)};
  }
};

template <class T>
INGOT_HOST_DEVICE T from_float(float x) {
  return FromFloat<T>::convert(x);
}

// Rounds two floats to T in one word, `low` in the low half.
template <class T>
requires(sizeof(T) == 2) INGOT_HOST_DEVICE u32 from_float_pair(float low, float high) {
#if INGOT_ON_DEVICE
  if constexpr (is_same<T, bf16>) {
    return ptx::cvt_bf16x2(low, high);
  } else {
    return ptx::cvt_f16x2(low, high);
  }
#else
  return from_float<T>(low).bits | static_cast<u32>(from_float<T>(high).bits) << 16;
#endif
}

}  // namespace ingot
