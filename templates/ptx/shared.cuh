// PTX ISA 9.7.9.8 "ld", 9.7.9.12 "st", 9.7.14.5.16 "stmatrix": loads and stores of shared memory by its 32-bit
// addresses, which barriers, the copy engine and the tensor cores use too. Device code only; stmatrix sm_90 and up.
#pragma once

#include "platform.cuh"

#if INGOT_ON_DEVICE
namespace ingot::ptx {

// The block's dynamic shared memory. It is aligned to 1024 bytes, so a tile of 128-byte swizzled rows may start there.
INGOT_DEVICE u8* dynamic_shared_pointer() {
  extern __shared__ __align__(1024) u8 ingot_dynamic_shared[];
  return ingot_dynamic_shared;
}
INGOT_DEVICE u32 dynamic_shared() { return static_cast<u32>(__cvta_generic_to_shared(dynamic_shared_pointer())); }

INGOT_DEVICE U32x4 ld_shared16(u32 address) {
  U32x4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(address)
               : "memory");
  return v;
}
INGOT_DEVICE void st_shared16(u32 address, U32x4 v) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
               : "memory");
}
INGOT_DEVICE U32x2 ld_shared8(u32 address) {
  U32x2 v;
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(address) : "memory");
  return v;
}
INGOT_DEVICE u32 ld_shared4(u32 address) {
  u32 v;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(address) : "memory");
  return v;
}
INGOT_DEVICE u16 ld_shared2(u32 address) {
  u16 v;
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(v) : "r"(address) : "memory");
  return v;
}

INGOT_DEVICE void st_shared2(u32 address, u16 value) {
  asm volatile("st.shared.u16 [%0], %1;" ::"r"(address), "h"(value) : "memory");
}

INGOT_DEVICE void st_shared4(u32 address, u32 value) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}

// Loads (stores) two neighbouring floats.
INGOT_DEVICE void ld_shared_floats(u32 address, float& first, float& second) {
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(first), "=f"(second) : "r"(address) : "memory");
}
INGOT_DEVICE void st_shared_floats(u32 address, float first, float second) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(address), "f"(first), "f"(second) : "memory");
}
INGOT_DEVICE void st_shared_float(u32 address, float value) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(address), "f"(value) : "memory");
}

// Stores four 8 x 8 matrices of 16-bit elements. Of each matrix, lane l holds elements 2 (l % 4) and 2 (l % 4) + 1 of
// row l / 4; it passes the address of row l % 8 of matrix l / 8.
INGOT_DEVICE void stmatrix_x4(u32 address, const u32 (&matrices)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(matrices[0]),
               "r"(matrices[1]), "r"(matrices[2]), "r"(matrices[3])
               : "memory");
}

}  // namespace ingot::ptx
#endif
