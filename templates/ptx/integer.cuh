// PTX ISA 9.7.1.13, "max": packed integer maxima. Device code only.
#pragma once

#include "platform.cuh"

#if INGOT_ON_DEVICE
namespace ingot::ptx {

// The larger of each 16-bit half. sm_90 and up.
INGOT_DEVICE u32 max_u16x2(u32 a, u32 b) {
#if __CUDA_ARCH__ >= 900
  u32 result;
  asm("max.u16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
  return result;
#else
  return 0;
#endif
}

}  // namespace ingot::ptx
#endif
