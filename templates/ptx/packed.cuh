// PTX ISA 9.7.4 "mul" and "fma" of bf16x2, 9.7.1 "add" and "max" of s16x2: arithmetic on two 16-bit numbers in a word.
// Device code only.
#pragma once

#include "platform.cuh"

#if INGOT_ON_DEVICE
namespace ingot::ptx {

// Keeps subnormal numbers. sm_80 has no bf16x2 product, only fma: it adds -0, with which every product keeps its sign.
INGOT_DEVICE u32 mul_bf16x2(u32 a, u32 b) {
  u32 product;
#if __CUDA_ARCH__ >= 900
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
#else
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(product) : "r"(a), "r"(b), "r"(0x80008000U));
#endif
  return product;
}

// max(a + b, c) in each signed 16-bit half; the sums must not overflow. One instruction on sm_90.
INGOT_DEVICE u32 max_of_sum_s16x2(u32 a, u32 b, u32 c) {
#if __CUDA_ARCH__ >= 900
  u32 sum;
  u32 larger;
  asm("add.s16x2 %0, %1, %2;" : "=r"(sum) : "r"(a), "r"(b));
  asm("max.s16x2 %0, %1, %2;" : "=r"(larger) : "r"(sum), "r"(c));
  return larger;
#else
  const i32 low = static_cast<i32>(a << 16) + static_cast<i32>(b << 16);
  const i32 high = static_cast<i32>(a & 0xffff0000U) + static_cast<i32>(b & 0xffff0000U);
  const i32 low_larger = max_of(low, static_cast<i32>(c << 16));
  const i32 high_larger = max_of(high, static_cast<i32>(c & 0xffff0000U));
  return static_cast<u32>(low_larger) >> 16 | (static_cast<u32>(high_larger) & 0xffff0000U);
#endif
}

}  // namespace ingot::ptx
#endif
