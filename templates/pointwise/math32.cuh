// Functions for results that stay f32: within 2 ulp (erf 4), with the same bits on host and device, over the whole
// range of f32, subnormal results included. The methods are those of math16.cuh, with a longer reduction of the
// argument and a correction of the last bits. The polynomials are minimax fits made for this file.
#pragma once

#include "pointwise/math_exact.cuh"

namespace ingot::math::grade32 {

// Splits x into n ln(2) + f, with ln(2) in two parts (Cody and Waite); |x| must be below 2^9.
struct Natural {
  i32 n;
  float f;
  INGOT_HOST_DEVICE explicit Natural(float x) {
    const float shifted = fused_multiply_add(x, kLog2E, kRounder);
    const float whole = shifted - kRounder;
    n = static_cast<i32>(float_bits(shifted) - float_bits(kRounder));
    f = fused_multiply_add(whole, 1.90465421e-9F, fused_multiply_add(whole, -0.693147182F, x));
  }
};

// (e^f - 1 - f) / f^2 for |f| <= ln(2) / 2; e^f - 1 within 2^-26.2.
INGOT_HOST_DEVICE float exp_tail(float f) {
  return polynomial(f, 0.49999997F, 0.166665435F, 0.0416672006F, 0.00836651865F, 0.00138825225F);
}

// The part that 1 + f rounds off is added back. The scale is applied in two halves, so that a subnormal result is
// rounded only once more, by the last product.
INGOT_HOST_DEVICE float exp(float x) {
  const Natural y(clamp(x, -104.0F, 89.0F));
  const float sum = 1.0F + y.f;
  const float rest = fused_multiply_add(y.f * y.f, exp_tail(y.f), y.f - (sum - 1.0F));
  const i32 half = y.n >> 1;
  return (sum + rest) * power_of_two(half) * power_of_two(y.n - half);
}

// As in math16.cuh. Below -20 the result is -1.
INGOT_HOST_DEVICE float expm1(float x) {
  const Natural y(clamp(x, -20.0F, 89.0F));
  const float half_scale = power_of_two(y.n - 1);
  const float small = fused_multiply_add(y.f * y.f, exp_tail(y.f), y.f);
  const float half = fused_multiply_add(half_scale, small, half_scale - 0.5F);
  return with_sign(half + half, x);
}

// a / (d + rest) for d in [2^-100, 2^100], where `rest` is what rounding took from d. The remainder corrects the
// quotient.
INGOT_HOST_DEVICE float positive_quotient(float a, float d, float rest = 0.0F) {
  const float r = positive_reciprocal(d);
  const float q = a * r;
  return fused_multiply_add(fused_multiply_add(-q, rest, fused_multiply_add(-q, d, a)), r, q);
}

// e^x / (1 + e^x) or 1 / (1 + e^-x): the one whose exponential is below 1.
INGOT_HOST_DEVICE float sigmoid(float x) {
  const float e = exp(-absolute(x));
  const float sum = 1.0F + e;
  return positive_quotient(x < 0.0F ? e : 1.0F, sum, e - (sum - 1.0F));
}

// Up to 0.6: x + x^3 q(x^2). Above: (e^2a - 1) / (e^2a + 1), which reaches 1 long before the clamp.
INGOT_HOST_DEVICE float tanh(float x) {
  const float a = minimum(absolute(x), 10.0F);
  const float square = a * a;
  const float q =
      polynomial(square, -0.333333313F, 0.133332461F, -0.0539521687F, 0.0217327215F, -0.0082627451F, 0.00222697458F);
  const float e = expm1(a + a);
  return with_sign(a < 0.6F ? fused_multiply_add(a * square, q, a) : positive_quotient(e, e + 2.0F), x);
}

// erf(a) for a <= 1, and -log(1 - erf(a)) above: with erf's accuracy up to 4, within 2^-23 up to 4.6, and rising past
// 104 at 10.4.
INGOT_HOST_DEVICE float small_erf(float a) {
  const float q = polynomial(a * a, 0.128379166F, -0.37612626F, 0.112835854F, -0.026853811F, 0.00518832775F,
                             -0.000801019371F, 7.85386073e-05F);
  return fused_multiply_add(a, q, a);
}
INGOT_HOST_DEVICE float minus_log_erfc(float a) {
  return polynomial(a, -0.000185511075F, 1.12967086F, 0.632814972F, 0.10912577F, -0.0258680451F, 0.00456218647F,
                    -0.000554340534F, 4.10117602e-05F, -1.38283935e-06F);
}

INGOT_HOST_DEVICE float erf(float x) {
  const float a = minimum(absolute(x), 4.0F);
  return with_sign(a < 1.0F ? small_erf(a) : 1.0F - exp(-minus_log_erfc(a)), x);
}

// (1 + erf(x / sqrt(2))) / 2, without cancellation for x < 0: there the error is that of the exponent, up to 2^-19.
INGOT_HOST_DEVICE float normal_cdf(float x) {
  const float a = minimum(absolute(x) * 0.707106781F, 10.5F);
  const float tail = a < 1.0F ? fused_multiply_add(-0.5F, small_erf(a), 0.5F) : 0.5F * exp(-minus_log_erfc(a));
  return x > 0.0F ? 1.0F - tail : tail;
}

INGOT_HOST_DEVICE u32 exponent_bits(float x) { return (float_bits(x) - 0x3f3504f3U) & 0xff800000U; }

// e ln(2) + log(1 + f), with log(1 + f) = f - f^2 / 2 + f^3 q(f) within 2^-27.3 before rounding.
INGOT_HOST_DEVICE float log_of_parts(u32 exponent, float f) {
  const float q = polynomial(f, 0.333333313F, -0.250008225F, 0.200012207F, -0.166233271F, 0.142018825F, -0.131606296F,
                             0.127608597F, -0.0763228983F);
  const float log1p = fused_multiply_add(f * f, fused_multiply_add(f, q, -0.5F), f);
  return fused_multiply_add(static_cast<float>(static_cast<i32>(exponent)), kLn2 * 0x1p-23F, log1p);
}

INGOT_HOST_DEVICE float log_or_end(float x, float result) {
  const float end = x == 0.0F ? float_from_bits(kInfBits | kSignBit) : (x < 0.0F ? float_from_bits(kNanBits) : x);
  return x > 0.0F && x < float_from_bits(kInfBits) ? result : end;
}

INGOT_HOST_DEVICE float log(float x) {
  const bool subnormal = x < 0x1p-126F;
  const float normal = subnormal ? x * 0x1p23F : x;
  const u32 exponent = exponent_bits(normal);
  const float f = float_from_bits(float_bits(normal) - exponent) - 1.0F;
  return log_or_end(x, log_of_parts(exponent - (subnormal ? 23U << 23 : 0U), f));
}

// As in math16.cuh.
INGOT_HOST_DEVICE float log1p(float x) {
  const float sum = 1.0F + x;
  const u32 exponent = exponent_bits(sum);
  const float inverse = float_from_bits(0x3f800000U - exponent);
  const float f =
      x < 0x1p64F ? fused_multiply_add(x, inverse, inverse - 1.0F) : float_from_bits(float_bits(x) - exponent) - 1.0F;
  const float result = log_or_end(sum, log_of_parts(exponent, f));
  return x == 0.0F ? x : result;
}

// x = m 2^e with m in [1, 2), for positive finite x.
struct Parts {
  float m;
  i32 e;
  INGOT_HOST_DEVICE explicit Parts(float x) {
    const bool subnormal = x < 0x1p-126F;
    const u32 bits = float_bits(subnormal ? x * 0x1p23F : x);
    m = float_from_bits((bits & 0x7fffffU) | 0x3f800000U);
    e = static_cast<i32>(bits >> 23) - (subnormal ? 150 : 127);
  }
};

// Divides the significands, then scales in two halves; past +-252 the result is 0 or Inf in any case. For zeros, Inf
// and NaN a product gives what IEEE division gives.
INGOT_HOST_DEVICE float divide(float a, float b) {
  const u32 sign = (float_bits(a) ^ float_bits(b)) & kSignBit;
  const float dividend = absolute(a);
  const float divisor = absolute(b);
  const float inf = float_from_bits(kInfBits);
  if (!(dividend > 0.0F && dividend < inf && divisor > 0.0F && divisor < inf)) {
    const float inverse = divisor == 0.0F ? inf : (divisor == inf ? 0.0F : divisor);
    // A finite divisor above 0 may stand in for its inverse here: 0, Inf and NaN stay what they are.
    return float_from_bits(float_bits(dividend * inverse) | sign);
  }
  const Parts x(dividend);
  const Parts y(divisor);
  const i32 e = max_of(-252, min_of(x.e - y.e, 252));
  const i32 half = e >> 1;
  const float quotient = positive_quotient(x.m, y.m) * power_of_two(half) * power_of_two(e - half);
  return float_from_bits(float_bits(quotient) | sign);
}

INGOT_HOST_DEVICE float reciprocal(float x) { return divide(1.0F, x); }

// 1 / sqrt(x) for x in [2^-100, 2^127]: the method of math16.cuh and one Newton step.
INGOT_HOST_DEVICE float positive_rsqrt(float x) {
  const float guess = float_from_bits(0x5f375a86U - (float_bits(x) >> 1));
  const float once = guess * polynomial(x * guess * guess, 2.18907793F, -2.190883F, 1.31453106F, -0.312726827F);
  const float root = x * once;
  const float error = fused_multiply_add(-root, once, 1.0F) - fused_multiply_add(x, once, -root) * once;
  return fused_multiply_add(0.5F * once, error, once);
}

INGOT_HOST_DEVICE float rsqrt(float x) {
  const bool small = x < 0x1p-100F;
  const float inside = positive_rsqrt(small ? x * 0x1p64F : x) * (small ? 0x1p32F : 1.0F);
  const float inf = float_from_bits(kInfBits);
  const float end = x == 0.0F ? with_sign(inf, x) : (x < 0.0F ? float_from_bits(kNanBits) : (x == inf ? 0.0F : x));
  return x > 0.0F && x < inf ? inside : end;
}

INGOT_HOST_DEVICE float sqrt(float x) {
  const bool small = x < 0x1p-100F;
  const float scaled = small ? x * 0x1p64F : x;
  const float r = positive_rsqrt(scaled);
  const float root = scaled * r;
  const float inside =
      fused_multiply_add(fused_multiply_add(-root, root, scaled), 0.5F * r, root) * (small ? 0x1p-32F : 1.0F);
  const float end = x < 0.0F ? float_from_bits(kNanBits) : x;
  return x > 0.0F && x < float_from_bits(kInfBits) ? inside : end;
}

}  // namespace ingot::math::grade32
