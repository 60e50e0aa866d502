// PTX ISA 9.7.9.9 "ld.global.nc", 9.7.9.12 "st", 9.7.9.16 "prefetch", 9.7.9.19 "createpolicy": loads and
// stores with a cache hint. Device code only. Loads are volatile to the compiler, so that none moves before
// griddepcontrol_wait().
#pragma once

#include "platform.cuh"

#if INGOT_ON_DEVICE
namespace ingot::ptx {

// What the L2 lets go of in its turn.
INGOT_DEVICE u64 createpolicy_evict_normal() {
  u64 policy;
  asm("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

// 16 bytes that no thread writes during the kernel.
INGOT_DEVICE U32x4 ld_global_nc(const void* source, u64 policy) {
  U32x4 v;
  asm volatile("ld.global.nc.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(source), "l"(policy));
  return v;
}

// The same, for data that is read once: keeps out of the L1.
INGOT_DEVICE U32x4 ld_global_nc_once(const void* source, u64 policy) {
  U32x4 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(source), "l"(policy));
  return v;
}

// One float that no thread writes during the kernel.
INGOT_DEVICE float ld_global_nc_float(const float* source) {
  float value;
  asm volatile("ld.global.nc.f32 %0, [%1];" : "=f"(value) : "l"(source));
  return value;
}

// Into the L2.
INGOT_DEVICE void prefetch_global_l2(const void* source) { asm volatile("prefetch.global.L2 [%0];" ::"l"(source)); }

// Streaming stores: first to leave the L2, so that they do not push out data that will be read again.
INGOT_DEVICE void st_global_cs(void* target, U32x4 v) {
  asm volatile("st.global.cs.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(target), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
               : "memory");
}
INGOT_DEVICE void st_global_cs(void* target, U32x2 v) {
  asm volatile("st.global.cs.v2.u32 [%0], {%1, %2};" ::"l"(target), "r"(v.x), "r"(v.y) : "memory");
}
INGOT_DEVICE void st_global_cs(void* target, u32 v) {
  asm volatile("st.global.cs.u32 [%0], %1;" ::"l"(target), "r"(v) : "memory");
}

}  // namespace ingot::ptx
#endif
