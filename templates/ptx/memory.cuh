// PTX ISA 9.7.9.8 "ld", 9.7.9.9 "ld.global.nc", 9.7.9.12 "st", 9.7.9.16 "prefetch", 9.7.9.19 "createpolicy", 9.7.13.4
// "fence": loads and stores of global memory with a cache hint, and loads, stores and fences that order other accesses.
// Device code only. The asm of loads is volatile, so that the compiler moves none of them before griddepcontrol_wait().
#pragma once

#include "platform.cuh"

#if INGOT_ON_DEVICE
namespace ingot::ptx {

// An L2 policy: evict these lines in the usual order, as by default.
INGOT_DEVICE u64 createpolicy_evict_normal() {
  u64 policy;
  asm("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

// L2 policies: evict these lines before others, or after them.
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

// Loads 16 bytes that no thread writes during the kernel.
INGOT_DEVICE U32x4 ld_global_nc(const void* source, u64 policy) {
  U32x4 v;
  asm volatile("ld.global.nc.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(source), "l"(policy));
  return v;
}

// The same for data that is read once: does not allocate in the L1.
INGOT_DEVICE U32x4 ld_global_nc_once(const void* source, u64 policy) {
  U32x4 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(source), "l"(policy));
  return v;
}

// Loads 16 bytes that this thread may write later.
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

// Loads 16 bytes that another block may have written: reads the L2 and bypasses the L1.
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

// A flag by which threads of the GPU tell each other that memory is written: a thread whose ld_acquire reads the value
// of an st_release sees everything that was written before that st_release.
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

// Orders this thread's earlier reads and writes before its later ones, as seen by the block.
INGOT_DEVICE void fence_block() { asm volatile("fence.acq_rel.cta;" ::: "memory"); }

// Loads a line into the L2.
INGOT_DEVICE void prefetch_global_l2(const void* source) { asm volatile("prefetch.global.L2 [%0];" ::"l"(source)); }

INGOT_DEVICE void st_global(u8* target, u8 v) {
  asm volatile("st.global.u8 [%0], %1;" ::"l"(target), "r"(u32{v}) : "memory");
}

// Streaming stores: their lines leave the L2 first, so they do not push out data that will be read again.
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
