// PTX ISA 9.7.13.15 "mbarrier": barriers in shared memory that count arriving threads and the bytes of copies still to
// come. Addresses are those of the shared state space (shared.cuh). Device code only; sm_90 and up.
#pragma once

#include "platform.cuh"

#if INGOT_ON_DEVICE
namespace ingot::ptx {

// Does each lane of a warp arrive, instead of one lane for all after __syncwarp()? compute-sanitizer's racecheck does
// not follow a lane that arrives for others (docs/notes/gemm.md): scripts/gpu_check.sh sets this for it. (Of the
// barriers for which it was needed: of gemm_sm90's stages, and of the sums that dequant_sm90's warps exchange.)
inline constexpr bool kEachLaneArrives = false;
inline constexpr u32 kArrivalsOfWarp = kEachLaneArrives ? 32 : 1;

INGOT_DEVICE void mbarrier_init(u32 barrier, u32 arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// Makes initialised barriers visible to the copy engine and to the other blocks of the cluster.
INGOT_DEVICE void fence_mbarrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

INGOT_DEVICE void mbarrier_arrive(u32 barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Arrives once all of the thread's cp_async() copies so far are complete. It is one of the arrivals that
// mbarrier_init() counts.
INGOT_DEVICE void cp_async_mbarrier_arrive(u32 barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

// Arrives at a barrier of any block of the cluster (an address from mapa). It has the default scope: `.release.cluster`
// would cost a fence of the whole GPU's memory each time.
INGOT_DEVICE void mbarrier_arrive_cluster(u32 barrier) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Arrives, and adds `bytes` to the bytes for which the phase waits.
INGOT_DEVICE void mbarrier_arrive_expect_tx(u32 barrier, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

// Is the phase of this parity complete, or soon? A `no` says nothing.
INGOT_DEVICE bool mbarrier_looks_complete(u32 barrier, u32 parity) {
  u32 complete;
  asm volatile(
      "{\n"
      ".reg .pred complete;\n"
      "mbarrier.try_wait.parity.shared::cta.b64 complete, [%1], %2;\n"
      "selp.u32 %0, 1, 0, complete;\n"
      "}"
      : "=r"(complete)
      : "r"(barrier), "r"(parity)
      : "memory");
  return complete != 0;
}

// Waits until the phase of this parity is complete: the barrier's current phase or the one before it, whose parities
// differ.
INGOT_DEVICE void mbarrier_wait(u32 barrier, u32 parity) {
  asm volatile(
      "{\n"
      ".reg .pred complete;\n"
      "again: mbarrier.try_wait.parity.shared::cta.b64 complete, [%0], %1;\n"
      "@complete bra done;\n"
      "bra again;\n"
      "done:\n"
      "}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

}  // namespace ingot::ptx
#endif
