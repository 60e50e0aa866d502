// PTX ISA 9.7.13.4 "barrier.cluster", 9.7.9.24 "mapa", 9.7.13.1 "bar", 9.7.19.5 "setmaxnreg": synchronises the blocks
// of a cluster and the warpgroups of a block, and moves registers between warpgroups. Device code only; sm_90 and up,
// setmaxnreg sm_90a.
#pragma once

#include "platform.cuh"

#if INGOT_ON_DEVICE
namespace ingot::ptx {

INGOT_DEVICE u32 cluster_rank() {
  u32 rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
// The blocks of the cluster.
INGOT_DEVICE u32 cluster_blocks() {
  u32 blocks;
  asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(blocks));
  return blocks;
}
// Which cluster of the grid, if clusters follow each other along x.
INGOT_DEVICE u32 cluster_index() {
  u32 index;
  asm volatile("mov.u32 %0, %%clusterid.x;" : "=r"(index));
  return index;
}
// How many clusters the grid has along x.
INGOT_DEVICE u32 cluster_count() {
  u32 count;
  asm volatile("mov.u32 %0, %%nclusterid.x;" : "=r"(count));
  return count;
}

// All threads of the cluster call them. After the wait a thread sees what the others wrote before they arrived.
INGOT_DEVICE void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
INGOT_DEVICE void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
// Does not make earlier writes visible to the others.
INGOT_DEVICE void cluster_arrive_relaxed() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
INGOT_DEVICE void cluster_sync() {
  cluster_arrive();
  cluster_wait();
}

// Maps `address` in this block's shared memory to the same address in the block of rank `rank`.
INGOT_DEVICE u32 mapa(u32 address, u32 rank) {
  u32 mapped;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(mapped) : "r"(address), "r"(rank));
  return mapped;
}

// Barrier `id` (1 to 15; 0 is __syncthreads) for `threads` threads: sync arrives and waits, arrive only arrives.
INGOT_DEVICE void named_barrier_sync(u32 id, u32 threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
INGOT_DEVICE void named_barrier_arrive(u32 id, u32 threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// A warpgroup gives registers back, or takes more. All of its threads call it, in a kernel with launch bounds.
template <u32 Registers>
INGOT_DEVICE void setmaxnreg_dec() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Registers));
}
template <u32 Registers>
INGOT_DEVICE void setmaxnreg_inc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Registers));
}

}  // namespace ingot::ptx
#endif
