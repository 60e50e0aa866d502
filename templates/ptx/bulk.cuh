// PTX ISA 9.7.9.27 "cp.async.bulk", 9.7.9.14 "st.async": bytes in a row from global to shared memory
// by the copy engine; and words to another block's shared memory, counted there. Device code only; sm_90 and up.
#pragma once

#include "platform.cuh"

#if INGOT_ON_DEVICE
namespace ingot::ptx {

// Addresses and sizes are multiples of 16. The barrier counts the bytes.
INGOT_DEVICE void bulk_load(u32 target, const void* source, u32 bytes, u32 barrier, u64 policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::
          "r"(target),
      "l"(source), "r"(bytes), "r"(barrier), "l"(policy)
      : "memory");
}

// To shared memory of a block of the cluster (mapa), whose barrier, of the same block, counts 16 bytes.
INGOT_DEVICE void st_async_floats(u32 target, float a, float b, float c, float d, u32 barrier) {
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(target),
      "f"(a), "f"(b), "f"(c), "f"(d), "r"(barrier)
      : "memory");
}

}  // namespace ingot::ptx
#endif
