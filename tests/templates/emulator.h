// Runs the kernels of templates/ on the host: one std::thread for each thread of a block, one block after the other. It
// is slow but exact: a kernel reads, writes and waits as it would on a GPU. So a machine without a GPU can test a
// kernel's indices, and -fsanitize=address,thread checks its use of shared memory.
//
// Include it before any template, in one translation unit per program.
#pragma once

#ifdef INGOT_EMULATED
#error "emulator.h: include once, first"
#endif
#define INGOT_EMULATED 1

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

namespace ingot {

struct EmulatedIndex {
  unsigned x = 0, y = 0, z = 0;
};
inline thread_local EmulatedIndex threadIdx;
inline thread_local EmulatedIndex blockIdx;
inline thread_local EmulatedIndex blockDim;
inline thread_local EmulatedIndex gridDim;

namespace emulator {

class Barrier {
 public:
  explicit Barrier(unsigned count) { pthread_barrier_init(&barrier_, nullptr, count); }
  ~Barrier() { pthread_barrier_destroy(&barrier_); }
  Barrier(const Barrier&) = delete;
  Barrier& operator=(const Barrier&) = delete;
  void wait() { pthread_barrier_wait(&barrier_); }

 private:
  pthread_barrier_t barrier_{};
};

struct Warp {
  Barrier barrier{32};
  unsigned values[32] = {};
  const void* gathered[32] = {};
};

struct Block {
  Block(unsigned threads, unsigned shared_bytes) : barrier(threads), warps(threads / 32), shared(shared_bytes / 16) {
    for (auto& warp : warps) warp = std::make_unique<Warp>();
  }
  Barrier barrier;
  std::vector<std::unique_ptr<Warp>> warps;
  struct alignas(16) Unit {
    unsigned char bytes[16] = {};
  };
  std::vector<Unit> shared;  // dynamic shared memory
};

inline thread_local Block* current = nullptr;

// Runs kernel(params) with `grid` blocks of `threads` threads (a multiple of 32) and the given dynamic shared memory.
template <class Kernel, class Params>
void launch(Kernel kernel, std::int64_t grid, unsigned threads, const Params& params, unsigned shared_bytes = 0) {
  Block block(threads, shared_bytes);
  std::vector<std::thread> pool;
  for (unsigned t = 0; t < threads; ++t) {
    pool.emplace_back([&, t] {
      current = &block;
      threadIdx.x = t;
      blockDim = {threads, 1, 1};
      gridDim = {static_cast<unsigned>(grid), 1, 1};
      for (unsigned b = 0; b < static_cast<unsigned>(grid); ++b) {
        blockIdx.x = b;
        kernel(params);
        block.barrier.wait();
      }
    });
  }
  for (auto& thread : pool) thread.join();
}

}  // namespace emulator

inline void __syncthreads() { emulator::current->barrier.wait(); }

inline void __syncwarp(unsigned = 0xffffffffU) { emulator::current->warps[threadIdx.x / 32]->barrier.wait(); }

inline unsigned __reduce_max_sync(unsigned, unsigned value) {
  emulator::Warp& warp = *emulator::current->warps[threadIdx.x / 32];
  warp.values[threadIdx.x % 32] = value;
  warp.barrier.wait();
  const unsigned maximum = *std::max_element(warp.values, warp.values + 32);
  warp.barrier.wait();
  return maximum;
}

inline unsigned shuffle(unsigned value, unsigned from) {
  emulator::Warp& warp = *emulator::current->warps[threadIdx.x / 32];
  warp.values[threadIdx.x % 32] = value;
  warp.barrier.wait();
  const unsigned result = warp.values[from % 32];
  warp.barrier.wait();
  return result;
}
inline unsigned __shfl_sync(unsigned, unsigned value, unsigned lane) { return shuffle(value, lane); }
inline unsigned __shfl_xor_sync(unsigned, unsigned value, unsigned mask) { return shuffle(value, threadIdx.x ^ mask); }

// The block's dynamic shared memory.
inline unsigned char* host_shared_memory() { return emulator::current->shared.data()->bytes; }

// Collects one value from every lane of the warp.
template <class T>
void gather_warp(const T& mine, T (&lanes)[32]) {
  emulator::Warp& warp = *emulator::current->warps[threadIdx.x / 32];
  warp.gathered[threadIdx.x % 32] = &mine;
  warp.barrier.wait();
  for (unsigned i = 0; i < 32; ++i) lanes[i] = *static_cast<const T*>(warp.gathered[i]);
  warp.barrier.wait();
}

inline unsigned atomicMax(unsigned* target, unsigned value) {
  const std::atomic_ref<unsigned> shared(*target);
  unsigned seen = shared.load();
  while (seen < value && !shared.compare_exchange_weak(seen, value)) {}
  return seen;
}

inline unsigned atomicAdd(unsigned* target, unsigned value) {
  return std::atomic_ref<unsigned>(*target).fetch_add(value);
}

inline unsigned atomicInc(unsigned* target, unsigned last) {
  const std::atomic_ref<unsigned> shared(*target);
  unsigned seen = shared.load();
  while (!shared.compare_exchange_weak(seen, seen >= last ? 0 : seen + 1)) {}
  return seen;
}
inline void __threadfence() { std::atomic_thread_fence(std::memory_order_seq_cst); }

// CUDA C++ Programming Guide, "Byte Permutation".
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
  const std::uint64_t bytes = static_cast<std::uint64_t>(y) << 32 | x;
  unsigned result = 0;
  for (unsigned i = 0; i < 4; ++i) {
    result |= static_cast<unsigned>(bytes >> (8 * (selector >> (4 * i) & 7U)) & 0xffU) << (8 * i);
  }
  return result;
}

}  // namespace ingot
