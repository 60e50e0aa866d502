// PTX ISA 9.7.9.27, "tensor copy": the copy engine moves boxes of a matrix that a tensor map describes. What lies
// outside of the matrix is read as zeros. Coordinates are elements: x along a row, y the row. Device code only; sm_90
// and up.
#pragma once

#include "platform.cuh"

namespace ingot {

// What cuTensorMapEncodeTiled() fills; opaque. A kernel takes it as a __grid_constant__ parameter.
struct alignas(128) TensorMap {
  u64 words[16];
};

}  // namespace ingot

#if INGOT_ON_DEVICE
namespace ingot::ptx {

INGOT_DEVICE void prefetch_tensormap(const TensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// Into this block's shared memory; the barrier there counts the bytes.
INGOT_DEVICE void tma_load(u32 target, const TensorMap* map, u32 barrier, i32 x, i32 y) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::
          "r"(target),
      "l"(map), "r"(barrier), "r"(x), "r"(y)
      : "memory");
}

// To the same place in every block of `mask` (one bit for each rank in the cluster), whose own barriers count.
INGOT_DEVICE void tma_load_multicast(u32 target, const TensorMap* map, u32 barrier, i32 x, i32 y, u16 mask) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1, {%3, %4}], [%2], %5;" ::"r"(target),
      "l"(map), "r"(barrier), "r"(x), "r"(y), "h"(mask)
      : "memory");
}

// From this block's shared memory; what lies outside of the matrix is not written. Ordinary writes to that memory come
// before fence_proxy_async(), and the store becomes part of the thread's next group.
INGOT_DEVICE void tma_store(const TensorMap* map, u32 source, i32 x, i32 y) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%2, %3}], [%1];" ::"l"(map),
               "r"(source), "r"(x), "r"(y)
               : "memory");
}
// Likewise before a barrier is told that this thread has loaded what a copy will overwrite.
INGOT_DEVICE void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
INGOT_DEVICE void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// All of the thread's groups have read their shared memory.
INGOT_DEVICE void bulk_wait_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
// All of the thread's groups are complete.
INGOT_DEVICE void bulk_wait() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

}  // namespace ingot::ptx
#endif
