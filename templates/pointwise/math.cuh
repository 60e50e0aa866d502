// The functions that fused expressions may call (exp, tanh, erf ...), in three grades of precision:
//
// - Reproducible16, for results that are then rounded to bf16, f16 or FP8: host and device give the same bits
//   (math16.cuh).
// - Reproducible32, for results that stay f32: host and device give the same bits (math32.cuh).
// - Fast: uses the GPU's special function unit (math_fast.cuh). On the host, which has none, it is Reproducible32.
//
// NaN gives NaN, with any payload: math_exact.cuh says why, and has the functions that need no grade (maximum, minimum,
// sign, step, absolute).
#pragma once

#include "pointwise/math16.cuh"
#include "pointwise/math32.cuh"
#include "pointwise/math_fast.cuh"

namespace ingot::math {

struct Reproducible16 {};
struct Reproducible32 {};
struct Fast {};

template <class M>
concept Grade = is_same<M, Reproducible16> || is_same<M, Reproducible32> || is_same<M, Fast>;

struct Errors {
  float exp, expm1, log, log1p, tanh, sigmoid, erf, normal_cdf, sqrt, rsqrt, reciprocal, divide;
};

// Bounds of the relative error. They hold where argument and result are 0 or normal numbers of magnitude below 2^126
// and the result is at least 2^-125.5; where normal_cdf's argument is at least -6 (below that, the function falls to 0
// in its own way) and divide's divisor at most 2^125. The bound of Fast's logarithm is relative to max(1, |log(x)|).
inline constexpr Errors kRelativeErrors16{.exp = 0x1.2p-18F,
                                          .expm1 = 0x1.7p-16F,
                                          .log = 0x1p-17F,
                                          .log1p = 0x1p-17F,
                                          .tanh = 0x1p-16F,
                                          .sigmoid = 0x1.bp-18F,
                                          .erf = 0x1.9p-17F,
                                          .normal_cdf = 0x1.6p-17F,
                                          .sqrt = 0x1.3p-20F,
                                          .rsqrt = 0x1.3p-20F,
                                          .reciprocal = 0x1p-18F,
                                          .divide = 0x1p-18F};
inline constexpr Errors kRelativeErrorsFast{.exp = 0x1p-17F,
                                            .expm1 = 0x1p-16F,
                                            .log = 0x1p-21F,
                                            .log1p = 0x1p-17F,
                                            .tanh = 0x1p-18F,
                                            .sigmoid = 0x1p-17F,
                                            .erf = 0x1.9p-17F,
                                            .normal_cdf = 0x1.6p-17F,
                                            .sqrt = 0x1p-22F,
                                            .rsqrt = 0x1p-22F,
                                            .reciprocal = 0x1p-22F,
                                            .divide = 0x1p-21F};

// Reproducible32's bounds in ulps of the result, subnormal results included; normal_cdf's bound holds from -6 on.
inline constexpr Errors kUlps32{.exp = 1.0F,
                                .expm1 = 1.6F,
                                .log = 1.0F,
                                .log1p = 1.6F,
                                .tanh = 1.6F,
                                .sigmoid = 1.6F,
                                .erf = 1.3F,
                                .normal_cdf = 91.0F,
                                .sqrt = 0.5F,
                                .rsqrt = 0.51F,
                                .reciprocal = 1.0F,
                                .divide = 1.0F};

template <Grade M>
INGOT_HOST_DEVICE float exp(float x) {
  if constexpr (is_same<M, Reproducible16>) return grade16::exp(x);
  if constexpr (is_same<M, Reproducible32>) return grade32::exp(x);
  if constexpr (is_same<M, Fast>) return fast::exp(x);
}

template <Grade M>
INGOT_HOST_DEVICE float expm1(float x) {
  if constexpr (is_same<M, Reproducible16>) return grade16::expm1(x);
  if constexpr (is_same<M, Reproducible32>) return grade32::expm1(x);
  if constexpr (is_same<M, Fast>) return fast::expm1(x);
}

template <Grade M>
INGOT_HOST_DEVICE float log(float x) {
  if constexpr (is_same<M, Reproducible16>) return grade16::log(x);
  if constexpr (is_same<M, Reproducible32>) return grade32::log(x);
  if constexpr (is_same<M, Fast>) return fast::log(x);
}

template <Grade M>
INGOT_HOST_DEVICE float log1p(float x) {
  if constexpr (is_same<M, Reproducible16>) return grade16::log1p(x);
  if constexpr (is_same<M, Reproducible32>) return grade32::log1p(x);
  if constexpr (is_same<M, Fast>) return fast::log1p(x);
}

template <Grade M>
INGOT_HOST_DEVICE float tanh(float x) {
  if constexpr (is_same<M, Reproducible16>) return grade16::tanh(x);
  if constexpr (is_same<M, Reproducible32>) return grade32::tanh(x);
  if constexpr (is_same<M, Fast>) return fast::tanh(x);
}

template <Grade M>
INGOT_HOST_DEVICE float sigmoid(float x) {
  if constexpr (is_same<M, Reproducible16>) return grade16::sigmoid(x);
  if constexpr (is_same<M, Reproducible32>) return grade32::sigmoid(x);
  if constexpr (is_same<M, Fast>) return fast::sigmoid(x);
}

// For an argument that is not NaN, or whose NaN reaches the result another way: a grade may give a number for NaN.
template <Grade M>
INGOT_HOST_DEVICE float sigmoid_of_number(float x) {
  if constexpr (is_same<M, Reproducible16>) return grade16::sigmoid_of_number(x);
  return sigmoid<M>(x);
}

template <Grade M>
INGOT_HOST_DEVICE float erf(float x) {
  if constexpr (is_same<M, Reproducible16>) return grade16::erf(x);
  if constexpr (is_same<M, Reproducible32>) return grade32::erf(x);
  if constexpr (is_same<M, Fast>) return fast::erf(x);
}

// The cumulative distribution function of the standard normal distribution: gelu(x) = x normal_cdf(x).
template <Grade M>
INGOT_HOST_DEVICE float normal_cdf(float x) {
  if constexpr (is_same<M, Reproducible16>) return grade16::normal_cdf(x);
  if constexpr (is_same<M, Reproducible32>) return grade32::normal_cdf(x);
  if constexpr (is_same<M, Fast>) return fast::normal_cdf(x);
}

template <Grade M>
INGOT_HOST_DEVICE float sqrt(float x) {
  if constexpr (is_same<M, Reproducible16>) return grade16::sqrt(x);
  if constexpr (is_same<M, Reproducible32>) return grade32::sqrt(x);
  if constexpr (is_same<M, Fast>) return fast::sqrt(x);
}

template <Grade M>
INGOT_HOST_DEVICE float rsqrt(float x) {
  if constexpr (is_same<M, Reproducible16>) return grade16::rsqrt(x);
  if constexpr (is_same<M, Reproducible32>) return grade32::rsqrt(x);
  if constexpr (is_same<M, Fast>) return fast::rsqrt(x);
}

template <Grade M>
INGOT_HOST_DEVICE float reciprocal(float x) {
  if constexpr (is_same<M, Reproducible16>) return grade16::reciprocal(x);
  if constexpr (is_same<M, Reproducible32>) return grade32::reciprocal(x);
  if constexpr (is_same<M, Fast>) return fast::reciprocal(x);
}

template <Grade M>
INGOT_HOST_DEVICE float divide(float a, float b) {
  if constexpr (is_same<M, Reproducible16>) return grade16::divide(a, b);
  if constexpr (is_same<M, Reproducible32>) return grade32::divide(a, b);
  if constexpr (is_same<M, Fast>) return fast::divide(a, b);
}

}  // namespace ingot::math
