// Lets the blocks of a cluster share a row that is too wide for the registers of one: each warp sends its result to all
// blocks (distributed shared memory), and waits until its own block has everything.
//
// A block may be sent something only when it has started, and not any more when it has ended. So kernels call
// cluster_start() first and cluster_started() before they send; and no block ends before it has received everything.
#pragma once

#include "platform.cuh"
#include "ptx/bulk.cuh"
#include "ptx/cluster.cuh"
#include "ptx/mbarrier.cuh"
#include "reduce.cuh"
#include "shared.cuh"

namespace ingot {

// Older targets have no clusters: there, kernels for clusters alone are empty and never launched.
inline constexpr bool kHasClusters = kDeviceArch == 0 || kDeviceArch >= 900;

inline constexpr u32 kMaxClusterBlocks = 8;  // for which every GPU with clusters has room

// The block's place in its cluster: asked for again after each barrier, it needs no registers meanwhile. All clusters
// of a launch have the same number of blocks, side by side along x.
struct ClusterPlace {
  u32 index;   // of the cluster
  u32 blocks;  // of the cluster
  u32 rank;    // of the block in it

  INGOT_DEVICE static ClusterPlace here() {
#if INGOT_ON_DEVICE
    return {ptx::cluster_index(), ptx::cluster_blocks(), ptx::cluster_rank()};
#else
    const u32 blocks = host_cluster_blocks();
    return {blockIdx.x / blocks, blocks, blockIdx.x % blocks};
#endif
  }
  // The threads of the cluster, and this one among them.
  INGOT_DEVICE u32 threads() const { return blocks * blockDim.x; }
  INGOT_DEVICE u32 thread() const { return rank * blockDim.x + threadIdx.x; }
};

// The clusters of the launch.
INGOT_DEVICE u32 cluster_count() {
#if INGOT_ON_DEVICE
  return ptx::cluster_count();
#else
  return gridDim.x / host_cluster_blocks();
#endif
}

INGOT_DEVICE void cluster_start() {
#if INGOT_ON_DEVICE
  ptx::cluster_arrive_relaxed();
#endif
}
INGOT_DEVICE void cluster_started() {
#if INGOT_ON_DEVICE
  ptx::cluster_wait();
#else
  host_cluster_wait();
#endif
}

// Words that the warps of a cluster send to all of its blocks, in dynamic shared memory. The cluster's barrier would do
// too, but its release waits until the writes of global memory before it have arrived, and its acquire empties the L1.
// Here a barrier in each block counts the words that arrive.
//
// They may be sent again and again, but not twice in a row: a block sends the next words only after the cluster has
// exchanged others, and what a block contributes to those comes after all of its threads have read these.
template <u32 Count>
struct alignas(16) ClusterWords {
  u32 words[Count];
  u64 arrived;  // the barrier; on the host, the number of words that have arrived

  INGOT_DEVICE void send(u32 index, u32 rank, u32 value) {
#if INGOT_ON_DEVICE
    ptx::st_async_word(ptx::mapa(shared_address(words + index), rank), value,
                       ptx::mapa(shared_address(&arrived), rank));
#else
    const auto offset = reinterpret_cast<u8*>(words + index) - host_shared_memory();
    *reinterpret_cast<u32*>(host_shared_memory(rank) + offset) = value;
    ++*reinterpret_cast<u64*>(host_shared_memory(rank) + (reinterpret_cast<u8*>(&arrived) - host_shared_memory()));
#endif
  }

  // Waits until the block has `count` words, all that the cluster sends to it this time. All threads of the cluster
  // call it, for the turn-th time since 0.
  INGOT_DEVICE void wait(u32 count, u32 turn) {
#if INGOT_ON_DEVICE
    const u32 barrier = shared_address(&arrived);
    if (threadIdx.x == 0) ptx::mbarrier_arrive_expect_tx(barrier, count * 4);
    ptx::mbarrier_wait(barrier, turn % 2);
#else
    host_cluster_wait();
    host_check(arrived == u64{count} * (turn + 1), "words arrive that no one waits for, or not all");
#endif
  }

#if INGOT_ON_DEVICE
  INGOT_DEVICE static u32 shared_address(const void* pointer) {
    return static_cast<u32>(__cvta_generic_to_shared(pointer));
  }
#endif
};

// cluster_start() of kernels with ClusterWords: all that they have.
template <class... Words>
INGOT_DEVICE void cluster_start_with(Words&... words) {
  if (threadIdx.x == 0) {
#if INGOT_ON_DEVICE
    (ptx::mbarrier_init(Words::shared_address(&words.arrived), 1), ...);
    ptx::fence_mbarrier_init();
#else
    ((words.arrived = 0), ...);
#endif
  }
  cluster_start();
}

inline constexpr u32 kMaxClusterWarps = 128;  // in blocks of up to 512 threads

// The maximum over all threads of the cluster, for all of them, by words that serve no other reduction, for the turn-th
// time: one for each warp.
template <u32 Count>
INGOT_DEVICE u32 cluster_max(u32 value, ClusterWords<Count>& maxima, u32 turn) {
  const ClusterPlace place = ClusterPlace::here();
  const u32 warps = blockDim.x / 32;
  const u32 lane = threadIdx.x % 32;
  value = __reduce_max_sync(0xffffffffU, value);
  if (lane < place.blocks) maxima.send(place.rank * warps + threadIdx.x / 32, lane, value);
  maxima.wait(place.blocks * warps, turn);
  u32 maximum = 0;
  INGOT_UNROLL_BY(1)
  for (u32 i = lane; i < place.blocks * warps; i += 32) maximum = max_of(maximum, maxima.words[i]);
  return __reduce_max_sync(0xffffffffU, maximum);
}

}  // namespace ingot
