// PTX ISA 9.7.1.13 "max", 9.7.8.6 "shf", 9.7.9.7 "prmt": maxima of packed integers, rotations, permutations of bytes.
// Device code only.
#pragma once

#include "platform.cuh"

#if INGOT_ON_DEVICE
namespace ingot::ptx {

// The larger of a and b in each 16-bit half. sm_90 and up.
INGOT_DEVICE u32 max_u16x2(u32 a, u32 b) {
#if __CUDA_ARCH__ >= 900
  u32 result;
  asm("max.u16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
  return result;
#else
  return 0;
#endif
}

// Byte i of the result is byte s of a (s = 0 to 3) or b (4 to 7), where s is hexadecimal digit i of Selector. With 8
// added to s, all eight bits are that byte's sign.
template <u32 Selector>
INGOT_DEVICE u32 prmt(u32 a, u32 b) {
  u32 result;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(b), "n"(Selector));
  return result;
}

// Rotates to the right. (If written as shifts, the compiler splits it into two where only some of the bits are used.)
template <u32 Count>
INGOT_DEVICE u32 rotate_right(u32 word) {
  u32 result;
  asm("shf.r.wrap.b32 %0, %1, %1, %2;" : "=r"(result) : "r"(word), "n"(Count));
  return result;
}

}  // namespace ingot::ptx
#endif
