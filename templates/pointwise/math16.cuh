// Functions for results that are then rounded to bf16, f16 or FP8: relative errors of 2^-15 to 2^-18, with the same
// bits on host and device. They use only products, sums, fused_multiply_add, comparisons, bit operations and
// positive_reciprocal().
//
// A fused cast evaluates these functions in a loop over a tensor that streams from memory, where every instruction
// counts. Hence no branch (except at the ends of the logarithms and roots), no table, and no correction that the
// following rounding would hide. The polynomials are minimax fits made for this file (Remez's exchange;
// Lawson's weights for the quotient and the constrained ones). docs/pointwise.md lists instruction counts and errors.
#pragma once

#include "pointwise/math_exact.cuh"

namespace ingot::math::grade16 {

// Splits x * log2(e) into n + f with |f| <= 1/2. It multiplies once, by a rounded log2(e): relative error 2^-19 at |n|
// = 126. `bits` holds n + kBias in its low 9 bits; |x| must be below 2^9.
template <int kBias>
struct Binary {
  u32 bits;
  float f;
  INGOT_HOST_DEVICE explicit Binary(float x, float log2e = kLog2E) {
    constexpr float kShift = kRounder + static_cast<float>(kBias);
    const float shifted = fused_multiply_add(x, log2e, kShift);
    bits = float_bits(shifted);
    f = fused_multiply_add(x, log2e, kShift - shifted);
  }
};

// 2^f on [-1/2, 1/2] within 2^-18.4; exactly 1 at 0.
INGOT_HOST_DEVICE float exp2(float x) {
  return polynomial(x, 1.0F, 0.693124175F, 0.240240991F, 0.0559064262F, 0.00958285294F);
}
// 2^(f + 1): the same, doubled.
INGOT_HOST_DEVICE float twice_exp2(float x) {
  return polynomial(x, 2.0F, 1.38624835F, 0.480481982F, 0.111812852F, 0.0191657059F);
}
// (2^f - 1) / f on [-1/2, 1/2] within 2^-16.0.
INGOT_HOST_DEVICE float exp2_minus_1(float x) {
  return polynomial(x, 0.693136871F, 0.240232527F, 0.0558372885F, 0.00961811095F);
}
// log(1 + f) / f on [sqrt(1/2) - 1, sqrt(2) - 1] within 2^-17.0.
INGOT_HOST_DEVICE float log1p_quotient(float x) {
  return polynomial(x, 1.00000453F, -0.49990207F, 0.332580358F, -0.254036009F, 0.220557347F, -0.142897338F);
}

// Newton's method for 1 / d, from a guess that costs no division. The first guess subtracts the exponent and mirrors
// the mantissa: it is within 4.2 % of 1 / d at powers of two and within 6.0 % between them. The first step's constant
// makes the result exact at powers of two, so that 1 / 1 is 1; the second step brings the other errors to between
// -2^-18.1 and 0.
inline constexpr u32 kReciprocalGuess = 0x7ef52542U;
INGOT_HOST_DEVICE float refined_reciprocal(float d, float guess) {
  const float once = guess * fused_multiply_add(-d, guess, 2.0018785F);
  return once * fused_multiply_add(-d, once, 2.0F);
}

// 2^(n - 1) times a value in [sqrt(2), sqrt(8)), so that the product overflows where it should. Results below 2^-125.5
// become 0.
INGOT_HOST_DEVICE float exp(float x) {
  const Binary<126> y(clamp(x, -87.6F, 89.4F));
  return twice_exp2(y.f) * power_of_two_from_bits(y.bits);
}

// 2^n (2^f - 1) + (2^n - 1), computed at half size so that n = 128 does not overflow. The result has the sign of x,
// also for -0.
INGOT_HOST_DEVICE float expm1(float x) {
  const Binary<126> y(clamp(x, -20.0F, 89.0F));
  const float half_scale = power_of_two_from_bits(y.bits);
  const float half = fused_multiply_add(half_scale, exp2_minus_1(y.f) * y.f, half_scale - 0.5F);
  return with_sign(half + half, x);
}

// 1 / (1 + 2^(-x log2(e))), and 0 for NaN. -x log2(e) is 127 - 254 t, with t = x log2(e) / 254 + 1/2 clamped to [0, 1]:
// one instruction clamps both ends, and what t rounds off is least where the result falls to 0 and feels it most. At
// the lower end the denominator is 2^127, whose reciprocal counts as 0.
INGOT_HOST_DEVICE float sigmoid_of_number(float x) {
  constexpr float kSpan = 254.0F;
  const Binary<254> y(saturated_multiply_add(x, kLog2E / kSpan, 0.5F), -kSpan);
  return positive_reciprocal(fused_multiply_add(exp2(y.f), power_of_two_from_bits(y.bits), 1.0F));
}
// The maximum is the first operand, or NaN for NaN.
INGOT_HOST_DEVICE float sigmoid(float x) { return maximum(sigmoid_of_number(x), -absolute(x)); }

// x P(x^2) / Q(x^2), which is exactly 1 at the clamp and nowhere above 1.
inline constexpr float kTanhHigh = 5.9306612F;
INGOT_HOST_DEVICE float tanh_numerator(float x) { return polynomial(x, 0.999990046F, 0.113912113F, 0.00145620981F); }
INGOT_HOST_DEVICE float tanh_denominator(float x) {
  return polynomial(x, 1.0F, 0.447167605F, 0.0172650423F, 5.26158874e-05F);
}
INGOT_HOST_DEVICE float tanh(float x) {
  const float a = minimum(absolute(x), kTanhHigh);
  const float square = a * a;
  return with_sign(a * tanh_numerator(square) * positive_reciprocal(tanh_denominator(square)), x);
}

// x P(x^2 - 4.805), which is exactly 1 at the clamp and nowhere above 1. Centred in the range of x^2, the polynomial's
// terms do not cancel.
inline constexpr float kErfHigh = 3.09987974F;
INGOT_HOST_DEVICE float erf_quotient(float x) {
  return polynomial(x, 0.455318362F, -0.0464098603F, 0.00675722724F, -0.00101743906F, 0.000146935447F, -1.83965058e-05F,
                    1.99026113e-06F, -2.79201998e-07F, 3.98536457e-08F, -2.48294807e-09F);
}
INGOT_HOST_DEVICE float erf(float x) {
  const float a = minimum(absolute(x), kErfHigh);
  return with_sign(a * erf_quotient(fused_multiply_add(a, a, -4.805F)), x);
}

// Phi(x), the cumulative distribution function of the standard normal distribution; gelu(x) = x Phi(x). For x < 0 it is
// 2^p(|x|), with p fitted to log2(Phi) on [-6.5, 0]: gelu's tail keeps its relative accuracy, which 1 + erf would lose.
// Below -6.5, p goes on falling, as x^7, and the result falls to 0.
INGOT_HOST_DEVICE float log2_normal_tail(float a) {
  return polynomial(a, -1.0F, -1.15119411F, -0.458597889F, -0.0538355285F, 0.00845107259F, -0.000917044064F,
                    6.00019725e-05F, -1.76032306e-06F);
}
INGOT_HOST_DEVICE float normal_cdf(float x) {
  constexpr float kShift = kRounder + 127.0F;
  const float p = log2_normal_tail(minimum(absolute(x), 12.8F));
  const float shifted = p + kShift;
  const float tail = exp2(p - (shifted - kShift)) * power_of_two_from_bits(float_bits(shifted));
  return x > 0.0F ? 1.0F - tail : tail;
}

// The exponent e of x = 2^e m with m in [sqrt(1/2), sqrt(2)), placed in a float's exponent bits; it may be negative.
INGOT_HOST_DEVICE u32 exponent_bits(float x) { return (float_bits(x) - 0x3f3504f3U) & 0xff800000U; }

// e ln(2) + log(1 + f).
INGOT_HOST_DEVICE float log_of_parts(u32 exponent, float f) {
  return fused_multiply_add(static_cast<float>(static_cast<i32>(exponent)), kLn2 * 0x1p-23F, log1p_quotient(f) * f);
}

// `result` for positive finite x; elsewhere the logarithm's limit or NaN.
INGOT_HOST_DEVICE float log_or_end(float x, float result) {
  const float end = x == 0.0F ? float_from_bits(kInfBits | kSignBit)
                              : (x < 0.0F ? float_from_bits(kNanBits) : x);  // -Inf; NaN; Inf and NaN as they are
  return x > 0.0F && x < float_from_bits(kInfBits) ? result : end;
}

INGOT_HOST_DEVICE float log(float x) {
  const bool subnormal = x < 0x1p-126F;
  const float normal = subnormal ? x * 0x1p23F : x;
  const u32 exponent = exponent_bits(normal);
  const float f = float_from_bits(float_bits(normal) - exponent) - 1.0F;
  return log_or_end(x, log_of_parts(exponent - (subnormal ? 23U << 23 : 0U), f));
}

// The exponent is that of 1 + x after rounding; f = (1 + x) / 2^e - 1 is computed from x itself, with one rounding. For
// x so large that 2^-e might not be a normal number, 1 + x equals x.
INGOT_HOST_DEVICE float log1p(float x) {
  const float sum = 1.0F + x;
  const u32 exponent = exponent_bits(sum);
  const float inverse = float_from_bits(0x3f800000U - exponent);
  const float f =
      x < 0x1p64F ? fused_multiply_add(x, inverse, inverse - 1.0F) : float_from_bits(float_bits(x) - exponent) - 1.0F;
  const float result = log_or_end(sum, log_of_parts(exponent, f));
  return x == 0.0F ? x : result;
}

// 0 gives Inf and Inf gives 0. A result below 2^-125.5 may become 0, and one above 2^126 Inf.
INGOT_HOST_DEVICE float reciprocal(float x) {
  const float a = minimum(absolute(x), 0x1p127F);
  const float guess = float_from_bits(max_of(kReciprocalGuess, float_bits(a)) - float_bits(a));
  return with_sign(refined_reciprocal(a, guess), x);
}

// For a divisor between 2^-126 and 2^125.
INGOT_HOST_DEVICE float divide(float a, float b) { return a * reciprocal(b); }

// 1 / sqrt(x) = guess / sqrt(u) with u = x guess^2 within 7 % of 1. The guess halves the exponent, as in Quake III's
// Q_rsqrt; a cubic polynomial, within 2^-20, replaces that function's Newton steps.
INGOT_HOST_DEVICE float positive_rsqrt(float x) {
  const float guess = float_from_bits(0x5f375a86U - (float_bits(x) >> 1));
  return guess * polynomial(x * guess * guess, 2.18907793F, -2.190883F, 1.31453106F, -0.312726827F);
}

// Inf for x below 2^-126: no mean of squares needs a subnormal.
INGOT_HOST_DEVICE float rsqrt(float x) {
  const float end = x < 0.0F ? float_from_bits(kNanBits) : (x >= 0.0F ? with_sign(float_from_bits(kInfBits), x) : x);
  const float inside = x < float_from_bits(kInfBits) ? positive_rsqrt(x) : 0.0F;
  return x >= 0x1p-126F ? inside : end;
}

// 0 for x below 2^-126.
INGOT_HOST_DEVICE float sqrt(float x) {
  const float end = x < 0.0F ? float_from_bits(kNanBits) : x * 0.0F;
  const float inside = x < float_from_bits(kInfBits) ? x * positive_rsqrt(x) : x;
  return x >= 0x1p-126F ? inside : end;
}

}  // namespace ingot::math::grade16
