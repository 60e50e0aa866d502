// PTX ISA 9.7.9.27 "tensor copy": the copy engine moves boxes of a matrix that a tensor map describes. Elements outside
// the matrix read as zeros. Coordinates count elements: x along a row, y down the rows. Device code only; sm_90 and up.
#pragma once

#include "platform.cuh"

namespace ingot {

// An opaque tensor map that cuTensorMapEncodeTiled() fills. A kernel takes it as a __grid_constant__ parameter.
struct alignas(128) TensorMap {
  u64 words[16];
};

}  // namespace ingot

#if INGOT_ON_DEVICE
namespace ingot::ptx {

INGOT_DEVICE void prefetch_tensormap(const TensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// Copies a box to this block's shared memory; a barrier of this block counts the bytes.
INGOT_DEVICE void tma_load(u32 target, const TensorMap* map, u32 barrier, i32 x, i32 y) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::
          "r"(target),
      "l"(map), "r"(barrier), "r"(x), "r"(y)
      : "memory");
}

// Copies a box to the same offset in every block of `mask` (one bit per rank in the cluster); each block's own barrier
// counts the bytes.
INGOT_DEVICE void tma_load_multicast(u32 target, const TensorMap* map, u32 barrier, i32 x, i32 y, u16 mask) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1, {%3, %4}], [%2], %5;" ::"r"(target),
      "l"(map), "r"(barrier), "r"(x), "r"(y), "h"(mask)
      : "memory");
}

// Copies a box from this block's shared memory; elements outside the matrix are not written. Ordinary writes to that
// memory need fence_proxy_async() before the copy. The copy belongs to the thread's next group.
INGOT_DEVICE void tma_store(const TensorMap* map, u32 source, i32 x, i32 y) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%2, %3}], [%1];" ::"l"(map),
               "r"(source), "r"(x), "r"(y)
               : "memory");
}
// Also needed before this thread signals a barrier that it has loaded what a copy will overwrite.
INGOT_DEVICE void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
INGOT_DEVICE void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// Waits until all of the thread's groups have read their shared memory.
INGOT_DEVICE void bulk_wait_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
// Waits until all of the thread's groups are complete.
INGOT_DEVICE void bulk_wait() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

}  // namespace ingot::ptx
#endif
