// PTX ISA 9.7.9.27 "cp.async.bulk", 9.7.9.14 "st.async": the copy engine copies contiguous bytes from global to shared
// memory; a thread stores words in another block's shared memory, and a barrier there counts their bytes. Device code
// only; sm_90 and up.
#pragma once

#include "platform.cuh"

#if INGOT_ON_DEVICE
namespace ingot::ptx {

// Addresses and sizes are multiples of 16. The barrier counts the bytes that arrive.
INGOT_DEVICE void bulk_load(u32 target, const void* source, u32 bytes, u32 barrier, u64 policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::
          "r"(target),
      "l"(source), "r"(bytes), "r"(barrier), "l"(policy)
      : "memory");
}

INGOT_DEVICE void bulk_load(u32 target, const void* source, u32 bytes, u32 barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(target),
               "l"(source), "r"(bytes), "r"(barrier)
               : "memory");
}

// Stores 16 bytes in the shared memory of a block of the cluster (an address from mapa). A barrier of that block counts
// them.
INGOT_DEVICE void st_async_floats(u32 target, float a, float b, float c, float d, u32 barrier) {
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(target),
      "f"(a), "f"(b), "f"(c), "f"(d), "r"(barrier)
      : "memory");
}

// The same of one word.
INGOT_DEVICE void st_async_word(u32 target, u32 word, u32 barrier) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%0], %1, [%2];" ::"r"(target), "r"(word),
               "r"(barrier)
               : "memory");
}

}  // namespace ingot::ptx
#endif
