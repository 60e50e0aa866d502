// Functions that do not round, or round once, and the bit operations from which the other functions are built. Host and
// device agree except in the payload of a NaN: x86 makes 0xffc00000 or keeps an operand's payload, GPUs make
// 0x7fffffff, and hiding the difference would cost every element a select per call. encode() and from_float() write a
// single NaN, so kernels still store the same bits.
#pragma once

#include "platform.cuh"
#include "ptx/math.cuh"

namespace ingot::math {

inline constexpr u32 kSignBit = 0x80000000U;
inline constexpr u32 kInfBits = 0x7f800000U;
inline constexpr u32 kNanBits = 0x7fc00000U;

// Like fabsf, which on the GPU becomes a modifier of the instruction that reads the value.
INGOT_HOST_DEVICE float absolute(float x) {
#if INGOT_ON_DEVICE
  return fabsf(x);
#else
  return float_from_bits(float_bits(x) & ~kSignBit);
#endif
}

// NaN if either operand is NaN; -0 is below +0.
INGOT_HOST_DEVICE float maximum(float a, float b) {
#if INGOT_ON_DEVICE
  return ptx::max_nan(a, b);
#else
  if (!(a == a)) return a;
  if (!(b == b)) return b;
  if (a == b) return float_from_bits(float_bits(a) & float_bits(b));
  return a > b ? a : b;
#endif
}

INGOT_HOST_DEVICE float minimum(float a, float b) {
#if INGOT_ON_DEVICE
  return ptx::min_nan(a, b);
#else
  if (!(a == a)) return a;
  if (!(b == b)) return b;
  if (a == b) return float_from_bits(float_bits(a) | float_bits(b));
  return a < b ? a : b;
#endif
}

// The first operand's magnitude with the second one's sign: one instruction.
INGOT_HOST_DEVICE float with_sign(float magnitude, float sign) {
#if INGOT_ON_DEVICE
  return copysignf(magnitude, sign);
#else
  return float_from_bits((float_bits(magnitude) & ~kSignBit) | (float_bits(sign) & kSignBit));
#endif
}

// 1 for positive x, -1 for negative x, and x itself for 0, -0 and NaN.
INGOT_HOST_DEVICE float sign(float x) { return x > 0.0F ? 1.0F : (x < 0.0F ? -1.0F : x); }

// 1 where x > 0, else 0; NaN stays NaN. The derivative of relu.
INGOT_HOST_DEVICE float step(float x) { return x > 0.0F ? 1.0F : (x <= 0.0F ? 0.0F : x); }

INGOT_HOST_DEVICE float clamp(float x, float low, float high) { return maximum(minimum(x, high), low); }

// a * b + c, rounded once, then clamped to [0, 1]: one instruction. NaN becomes 0.
INGOT_HOST_DEVICE float saturated_multiply_add(float a, float b, float c) {
#if INGOT_ON_DEVICE
  return ptx::fma_sat(a, b, c);
#else
  const float result = fused_multiply_add(a, b, c);
  return result >= 1.0F ? 1.0F : (result > 0.0F ? result : 0.0F);
#endif
}

// 1 / d, rounded as IEEE 754 asks, for d in [2^-126, 2^126]; 0 for finite d above. On the GPU one Newton step rounds
// the special function unit's approximation, which may differ from one GPU to another, to the one right result
// (test_math_gpu.cpp tries all significands).
INGOT_HOST_DEVICE float positive_reciprocal(float d) {
#if INGOT_ON_DEVICE
  const float r = ptx::rcp_approx(d);
  return fused_multiply_add(r, fused_multiply_add(-d, r, 1.0F), r);
#else
  return d > 0x1p126F ? 0.0F : 1.0F / d;
#endif
}

// Adding 1.5 * 2^23 rounds a float to an integer, which is then in the sum's low bits (two's complement). Subtracting
// the constant again gives that integer as a float. Shifting the sum left by 23 drops the constant's own bits.
inline constexpr float kRounder = 12582912.0F;
inline constexpr float kLog2E = 1.44269504F;
inline constexpr float kLn2 = 0.693147181F;

// 2^n for -126 <= n <= 127, from bits whose low 9 are n + 127. Low bits of 0 give 0, of 255 Inf.
INGOT_HOST_DEVICE float power_of_two_from_bits(u32 bits) { return float_from_bits(bits << 23); }
INGOT_HOST_DEVICE float power_of_two(i32 n) { return power_of_two_from_bits(static_cast<u32>(n + 127)); }

// c0 + c1 x + c2 x^2 + ..., by Horner's rule.
INGOT_HOST_DEVICE float polynomial(float, float c0) { return c0; }
template <class... Floats>
INGOT_HOST_DEVICE float polynomial(float x, float c0, Floats... rest) {
  return fused_multiply_add(polynomial(x, rest...), x, c0);
}

}  // namespace ingot::math
