// PTX ISA 9.7.9.22 "cvt": conversions for which C++ has no name. Device code only.
#pragma once

#include "platform.cuh"

#if INGOT_ON_DEVICE
namespace ingot::ptx {

// Encodes two floats as e4m3 (e5m2) codes, `low` in the low byte: rounds to nearest even and saturates to the largest
// finite value; NaN gives 0x7f. sm_89 and up.
INGOT_DEVICE u16 cvt_e4m3x2(float low, float high) {
#if __CUDA_ARCH__ >= 890
  u16 pair;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
  return pair;
#else
  return 0;
#endif
}

INGOT_DEVICE u16 cvt_e5m2x2(float low, float high) {
#if __CUDA_ARCH__ >= 890
  u16 pair;
  asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
  return pair;
#else
  return 0;
#endif
}

// Decodes four e4m3 codes to f16, exactly: the lower two bytes and the upper two. One asm statement does both, because
// taking a word's halves apart costs an instruction that the conversion itself does not need. sm_89 and up.
INGOT_DEVICE void cvt_f16x2_e4m3x4([[maybe_unused]] u32 codes, u32& lower, u32& upper) {
#if __CUDA_ARCH__ >= 890
  asm("{\n"
      ".reg .b16 low, high;\n"
      "mov.b32 {low, high}, %2;\n"
      "cvt.rn.f16x2.e4m3x2 %0, low;\n"
      "cvt.rn.f16x2.e4m3x2 %1, high;\n"
      "}"
      : "=r"(lower), "=r"(upper)
      : "r"(codes));
#else
  lower = upper = 0;
#endif
}

INGOT_DEVICE float cvt_f32_f16(u16 bits) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
}

// Rounds two floats to bf16 (f16), `low` in the low half: round to nearest even; NaN gives 0x7fff.
INGOT_DEVICE u32 cvt_bf16x2(float low, float high) {
  u32 pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

INGOT_DEVICE u32 cvt_f16x2(float low, float high) {
  u32 pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

}  // namespace ingot::ptx
#endif
