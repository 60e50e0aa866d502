// PTX ISA 9.7.3: floating-point instructions for which C++ has no name. Minima and maxima that return NaN (0x7fffffff)
// if an operand is NaN, with -0 below +0 (sm_80 and up), and the approximations of the special function unit. Device
// code only.
#pragma once

#include "platform.cuh"

#if INGOT_ON_DEVICE
namespace ingot::ptx {

INGOT_DEVICE float max_nan(float a, float b) {
  float result;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
  return result;
}

INGOT_DEVICE float min_nan(float a, float b) {
  float result;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
  return result;
}

// a * b + c, rounded once, then clamped to [0, 1]; NaN becomes 0.
INGOT_DEVICE float fma_sat(float a, float b, float c) {
  float result;
  asm("fma.rn.sat.f32 %0, %1, %2, %3;" : "=f"(result) : "f"(a), "f"(b), "f"(c));
  return result;
}

// 2^x within 2 ulp. The .ftz forms are one instruction; without .ftz, subnormal operands cost three more.
INGOT_DEVICE float ex2_approx(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

// log2(x): absolute error 2^-22 for x in (0.5, 2), relative error 2^-22 elsewhere.
INGOT_DEVICE float lg2_approx(float x) {
  float result;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

// 1 / x within 1 ulp.
INGOT_DEVICE float rcp_approx(float x) {
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

// 1 / sqrt(x): relative error 2^-22.9.
INGOT_DEVICE float rsqrt_approx(float x) {
  float result;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

// sqrt(x): relative error 2^-23.
INGOT_DEVICE float sqrt_approx(float x) {
  float result;
  asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

}  // namespace ingot::ptx
#endif
