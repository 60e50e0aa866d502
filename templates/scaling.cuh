// amax -> scale -> scale_inv: the numerics contract in code, used by the kernels and by the CPU reference.
#pragma once

#include "numerics.cuh"

namespace ingot {

// The extent of the groups and blocks that casts scale, and of their kernels' tiles.
inline constexpr i64 kGroup = 128;

// As integers, |x| order as they do as floats, with every NaN above Inf. So an integer maximum is an amax that keeps
// NaN and does not depend on the order of its operands.
INGOT_HOST_DEVICE u32 amax_bits(float x) { return float_bits(x) & 0x7fffffffU; }

// The amax for such an integer maximum; any NaN becomes the canonical one.
INGOT_HOST_DEVICE float amax_from_bits(u32 bits) { return float_from_bits(bits > kF32Inf ? kF32Nan : bits); }

// numerator / denominator, correctly rounded, for normal positive operands with a normal quotient, where the numerator
// is 1 or an FP8_MAX. The compiler's own division is a call with a slow path, in the middle of kernels whose registers
// are full; this takes 12 instructions and is the same on host and device. tests/templates/test_scaling.cpp compares it
// with IEEE division for every significand.
INGOT_HOST_DEVICE float quotient(float numerator, float denominator) {
  // 1. Work with the significand, in [1, 2); the exponent is subtracted at the end, exactly.
  const u32 bits = float_bits(denominator);
  const float significand = float_from_bits((bits & 0x7fffffU) | 0x3f800000U);
  const u32 exponent = (bits & kF32Inf) - 0x3f800000U;
  // 2. Newton's method for 1 / significand, from a line that is within 1/17: the error falls to 1/17^2, 1/17^4, 1/17^8,
  // then to the last bit.
  float reciprocal = fused_multiply_add(significand, -8.0F / 17.0F, 24.0F / 17.0F);
  INGOT_UNROLL
  for (int i = 0; i < 4; ++i) {
    reciprocal = fused_multiply_add(reciprocal, fused_multiply_add(-significand, reciprocal, 1.0F), reciprocal);
  }
  // 1 / significand is above 1/2, so it rounds to no less than the next float above 1/2: the one value that the steps
  // above miss.
  reciprocal = max_of(reciprocal, 0x1.000002p-1F);
  // 3. The quotient, corrected by its exact remainder.
  float result = numerator * reciprocal;
  result = fused_multiply_add(fused_multiply_add(-result, significand, numerator), reciprocal, result);
  return float_from_bits(float_bits(result) - exponent);
}

// scale = f32(FP8_MAX / max(f64(amax), 1e-12)), rounded down to a power of two if pow2 (torchao's formula). NaN stays
// NaN; an amax of Inf gives 0.
//
// The formula needs no f64, which is slow on half of the GPUs: a quotient of two f32 numbers that is rounded to f64 and
// then to f32 is the correctly rounded f32 quotient (53 >= 2 * 24 + 2 bits; no such quotient here is subnormal), and no
// f32 is between 1e-12F and 1e-12.
INGOT_HOST_DEVICE float scale_from_amax(float amax, float fp8_max, float largest_scale, bool pow2) {
  static_assert(1e-12F < 1e-12);
  if (is_nan(amax)) return float_from_bits(kF32Nan);
  if (float_bits(amax) == kF32Inf) return 0.0F;
  const float scale = amax <= 1e-12F ? largest_scale : quotient(fp8_max, amax);
  return pow2 ? float_from_bits(float_bits(scale) & kF32Inf) : scale;
}
template <Fp8Format F>
INGOT_HOST_DEVICE float scale_from_amax(float amax, bool pow2) {
  constexpr float kLargestScale = static_cast<float>(F::kMax / 1e-12);
  return scale_from_amax(amax, static_cast<float>(F::kMax), kLargestScale, pow2);
}
// For a format known only at run time, where one f64 division does not matter.
INGOT_HOST_DEVICE float scale_from_amax(float amax, float fp8_max, bool pow2) {
  return scale_from_amax(amax, fp8_max, static_cast<float>(static_cast<double>(fp8_max) / 1e-12), pow2);
}

// A delayed scale that no maximum has made yet is 1; what is no scale (garbage, 0, NaN) counts as none, too. A real
// scale of 1 counts as none, too: its tensor then gets the scale of its own maximum, which is as right.
INGOT_HOST_DEVICE bool has_scale(float scale) {
  return scale != 1.0F && float_bits(scale) - 1U < kF32Inf - 1U;  // positive and finite
}

// The scale_inv stored with the codes: value = code * scale_inv. `scale` comes from scale_from_amax() of this very
// amax: it is in the range of quotient(), or NaN, which stays, or 0, which gives Inf. Shorter than factor_from_scale(),
// whose bits it has.
INGOT_HOST_DEVICE float factor_from_dynamic_scale(float scale) {
  if (is_nan(scale)) return float_from_bits(kF32Nan);
  return scale == 0.0F ? float_from_bits(kF32Inf) : quotient(1.0F, scale);
}

// The same for a scale that a caller gives, which may be any: 1 / scale as IEEE rounds it, with the scale's sign. A
// scale of Inf gives NaN, because no scale_inv restores what it was multiplied with.
INGOT_HOST_DEVICE float factor_from_scale(float scale) {
  const u32 bits = float_bits(scale) & 0x7fffffffU;
  const u32 sign = float_bits(scale) ^ bits;
  const float magnitude = float_from_bits(bits);
  constexpr u32 kSmallest = 0x00800000U;  // 2^-126
  constexpr u32 kLargest = 0x7e800000U;   // 2^126, with the quotient 2^-126
  if (bits - kSmallest <= kLargest - kSmallest) return float_from_bits(float_bits(quotient(1.0F, magnitude)) | sign);
  if (bits >= kF32Inf) return float_from_bits(kF32Nan);
  if (bits == 0) return float_from_bits(kF32Inf | sign);
  if (bits < kSmallest) {
    const float inverse = quotient(1.0F, magnitude * 0x1p64F) * 0x1p64F;  // exact, or Inf
    return float_from_bits(float_bits(inverse) | sign);
  }
  // A subnormal quotient: `units` of 2^-149, rounded to nearest even by its exact remainder.
  const float unit = magnitude * 0x1p-75F * 0x1p-74F;
  u32 units = static_cast<u32>(quotient(1.0F, unit));
  const float twice_left = 2.0F * fused_multiply_add(-static_cast<float>(units), unit, 1.0F);
  if (twice_left > unit || (twice_left == unit && units % 2 != 0)) ++units;
  return float_from_bits(units | sign);
}

// codes = encode(saturate(f32(x) * scale)).
template <Fp8Format F>
INGOT_HOST_DEVICE F quantize(float x, float scale) {
  return encode<F>(x * scale);
}

// The same with a given scale, which does not know of an Inf in x. The Inf would saturate to a number like any other,
// so it becomes NaN instead. (With a dynamic scale, an Inf makes the scale 0 and the product NaN by itself.)
INGOT_HOST_DEVICE float scaled_by_given(float x, float scale) { return fused_multiply_add(x, 0.0F, x * scale); }
template <Fp8Format F>
INGOT_HOST_DEVICE F quantize_given(float x, float scale) {
  return encode<F>(scaled_by_given(x, scale));
}

}  // namespace ingot
