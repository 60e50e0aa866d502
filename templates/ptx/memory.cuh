// PTX ISA 9.7.9.8 "ld", 9.7.9.9 "ld.global.nc", 9.7.9.12 "st", 9.7.9.16 "prefetch", 9.7.9.19 "createpolicy",
// 9.7.13.4 "fence": loads and stores with a cache hint, and those that order others. Device code only. Loads are
// volatile to the compiler, so that none moves before griddepcontrol_wait().
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

// What it lets go of first, and last.
INGOT_DEVICE u64 createpolicy_evict_first() {
  u64 policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
INGOT_DEVICE u64 createpolicy_evict_last() {
  u64 policy;
  asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
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

// 16 bytes that this thread may write later.
INGOT_DEVICE U32x4 ld_global(const void* source, u64 policy) {
  U32x4 v;
  asm volatile("ld.global.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(source), "l"(policy)
               : "memory");
  return v;
}
INGOT_DEVICE U32x4 ld_global_once(const void* source, u64 policy) {
  U32x4 v;
  asm volatile("ld.global.L1::no_allocate.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(source), "l"(policy)
               : "memory");
  return v;
}

// One float that no thread writes during the kernel.
INGOT_DEVICE float ld_global_nc_float(const float* source) {
  float value;
  asm volatile("ld.global.nc.f32 %0, [%1];" : "=f"(value) : "l"(source));
  return value;
}

// 16 bytes that another block may have written: from the L2, past the L1.
INGOT_DEVICE U32x4 ld_global_cg(const void* source, u64 policy) {
  U32x4 v;
  asm volatile("ld.global.cg.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(source), "l"(policy)
               : "memory");
  return v;
}
INGOT_DEVICE void st_global(void* target, U32x4 v, u64 policy) {
  asm volatile("st.global.L2::cache_hint.v4.u32 [%0], {%1, %2, %3, %4}, %5;" ::"l"(target), "r"(v.x), "r"(v.y),
               "r"(v.z), "r"(v.w), "l"(policy)
               : "memory");
}

// A word by which the GPU's threads tell each other that memory is written: what is written before st_release is seen
// after an ld_acquire that has read its word.
INGOT_DEVICE u32 ld_acquire(const u32* source) {
  u32 value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(source) : "memory");
  return value;
}
INGOT_DEVICE void st_release(u32* target, u32 value) {
  asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(target), "r"(value) : "memory");
}
INGOT_DEVICE void st_relaxed(u32* target, u32 value) {
  asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(target), "r"(value) : "memory");
}

// This thread's reads and writes before it come before those after it, for the block.
INGOT_DEVICE void fence_block() { asm volatile("fence.acq_rel.cta;" ::: "memory"); }

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
