// The functions of the Fast grade, computed by the GPU's special function unit (16 lanes per clock and SM, in parallel
// with the other pipes). Their bits differ from the host's, and subnormals count as 0. log1p and erf have no faster
// form and come from math16.cuh. The host has no such unit: there, Fast is grade32.
//
// tanh.approx is not used: next to e4m3's steps of 2^-3 and 2^-4, its error of 2^-11 changes about one code in a
// hundred, and Fast may change only one in ten thousand.
#pragma once

#include "pointwise/math16.cuh"
#include "pointwise/math32.cuh"

#if INGOT_ON_DEVICE
namespace ingot::math::fast {

using grade16::erf;
using grade16::log1p;

INGOT_DEVICE float exp(float x) { return ptx::ex2_approx(x * kLog2E); }

INGOT_DEVICE float expm1(float x) {
  const float small = x * polynomial(x, 0.999991596F, 0.500007033F, 0.167416394F, 0.0416666232F);
  return absolute(x) < 0.3F ? small : exp(x) - 1.0F;
}

// Near 1, where the logarithm vanishes, lg2.approx bounds only the absolute error, so there is no relative bound there.
INGOT_DEVICE float log(float x) { return ptx::lg2_approx(x) * kLn2; }

INGOT_DEVICE float reciprocal(float x) { return ptx::rcp_approx(x); }
INGOT_DEVICE float divide(float a, float b) { return a * ptx::rcp_approx(b); }
INGOT_DEVICE float rsqrt(float x) { return ptx::rsqrt_approx(x); }
INGOT_DEVICE float sqrt(float x) { return ptx::sqrt_approx(x); }

INGOT_DEVICE float sigmoid(float x) { return ptx::rcp_approx(1.0F + ptx::ex2_approx(x * -kLog2E)); }

INGOT_DEVICE float normal_cdf(float x) {
  const float tail = ptx::ex2_approx(grade16::log2_normal_tail(minimum(absolute(x), 12.8F)));
  return x > 0.0F ? 1.0F - tail : tail;
}

// 1 - 2 / (1 + e^2a); where that cancels, a P(a^2), within 2^-21.
INGOT_DEVICE float tanh(float x) {
  const float a = absolute(x);
  const float small = a * polynomial(a * a, 0.999999583F, -0.333219081F, 0.128416136F);
  const float inverse = ptx::rcp_approx(1.0F + ptx::ex2_approx(a * (2.0F * kLog2E)));
  return with_sign(a < 0.25F ? small : fused_multiply_add(-2.0F, inverse, 1.0F), x);
}

}  // namespace ingot::math::fast
#else
namespace ingot::math {
namespace fast = grade32;
}
#endif
