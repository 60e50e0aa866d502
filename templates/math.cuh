// The functions that fused kernels compute, in three grades:
//
// - Reproducible16: for results that are then rounded to bf16, f16 or FP8. The same bits on host and device
// (math16.cuh).
// - Reproducible32: for results that stay f32. The same bits on host and device (math32.cuh).
// - Fast: the special function unit (math_fast.cuh), which the host does not have: there it is Reproducible32.
//
// NaN gives NaN, of any payload: math_exact.cuh says why, and has the functions that need no grade (maximum, minimum,
// sign, step, absolute).
#pragma once

#include "math16.cuh"
#include "math32.cuh"
#include "math_fast.cuh"

namespace ingot::math {

struct Reproducible16 {};
struct Reproducible32 {};
struct Fast {};

template <class M>
concept Grade = is_same<M, Reproducible16> || is_same<M, Reproducible32> || is_same<M, Fast>;

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

template <Grade M>
INGOT_HOST_DEVICE float erf(float x) {
  if constexpr (is_same<M, Reproducible16>) return grade16::erf(x);
  if constexpr (is_same<M, Reproducible32>) return grade32::erf(x);
  if constexpr (is_same<M, Fast>) return fast::erf(x);
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
