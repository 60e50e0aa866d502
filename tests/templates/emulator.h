// Runs the kernels of templates/ on the host: a fiber for each thread of a block, one block after the other. It is slow
// but exact: a kernel reads, writes and waits as it would on a GPU. So a machine without a GPU can test a kernel's
// indices. A fiber runs until it waits at a barrier; whom a barrier releases runs on in the order of arrival, and the
// next time in the reverse, so that a missing barrier shows whichever of two threads has to wait for the other. A
// barrier that some threads never reach ends the program with a message. Under a sanitizer each fiber is a std::thread:
// -fsanitize=address,thread checks the use of shared memory.
//
// Include it before any template, in one translation unit per program.
#pragma once

#ifdef INGOT_EMULATED
#error "emulator.h: include once, first"
#endif
#define INGOT_EMULATED 1

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define INGOT_EMULATED_BY_THREADS 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer) || __has_feature(address_sanitizer)
#define INGOT_EMULATED_BY_THREADS 1
#endif
#endif

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#ifdef INGOT_EMULATED_BY_THREADS
#include <pthread.h>

#include <thread>
#else
#include <ucontext.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <functional>
#endif

namespace ingot {

struct EmulatedIndex {
  unsigned x = 0, y = 0, z = 0;
};
inline thread_local EmulatedIndex threadIdx;
inline thread_local EmulatedIndex blockIdx;
inline thread_local EmulatedIndex blockDim;
inline thread_local EmulatedIndex gridDim;

namespace emulator {

#ifdef INGOT_EMULATED_BY_THREADS

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

// Runs body(t) for each thread of a block.
template <class Body>
void run_threads(unsigned threads, const Body& body) {
  std::vector<std::thread> pool;
  for (unsigned t = 0; t < threads; ++t) {
    pool.emplace_back([&body, t] {
      threadIdx.x = t;
      body(t);
    });
  }
  for (auto& thread : pool) thread.join();
}

#else

// The fibers of this host thread.
struct Fibers {
  static constexpr std::size_t kStackBytes = 256 * 1024;

  std::vector<std::unique_ptr<std::byte[]>> stacks{};  // kept for the next launch
  std::vector<ucontext_t> contexts{};
  std::deque<unsigned> ready{};
  ucontext_t caller{};
  std::function<void(unsigned)> body{};
};
inline thread_local Fibers fibers;

// Goes on with the next fiber that can run. Returns when fiber `from` is the next one again.
inline void run_next(unsigned from) {
  if (fibers.ready.empty()) {
    std::fputs("emulator: all threads wait at barriers that the others do not reach\n", stderr);
    std::abort();
  }
  const unsigned next = fibers.ready.front();
  fibers.ready.pop_front();
  threadIdx.x = next;
  if (next == from) return;
  swapcontext(&fibers.contexts[from], &fibers.contexts[next]);
}

class Barrier {
 public:
  explicit Barrier(unsigned count) : count_(count) {}
  Barrier(const Barrier&) = delete;
  Barrier& operator=(const Barrier&) = delete;

  void wait() {
    const unsigned me = threadIdx.x;
    waiting_.push_back(me);
    if (waiting_.size() == count_) {
      if (backwards_) std::reverse(waiting_.begin(), waiting_.end());
      backwards_ = !backwards_;
      fibers.ready.insert(fibers.ready.end(), waiting_.begin(), waiting_.end());
      waiting_.clear();
    }
    run_next(me);
  }

 private:
  unsigned count_;
  bool backwards_ = false;
  std::vector<unsigned> waiting_{};
};

inline void enter_fiber() {
  fibers.body(threadIdx.x);
  if (fibers.ready.empty()) return;  // to the caller: it was the last one
  threadIdx.x = fibers.ready.front();
  fibers.ready.pop_front();
  setcontext(&fibers.contexts[threadIdx.x]);
}

// Runs body(t) for each thread of a block.
template <class Body>
void run_threads(unsigned threads, const Body& body) {
  fibers.body = body;
  fibers.contexts.resize(threads);
  while (fibers.stacks.size() < threads) fibers.stacks.emplace_back(new std::byte[Fibers::kStackBytes]);
  for (unsigned t = 0; t < threads; ++t) {
    ucontext_t& context = fibers.contexts[t];
    getcontext(&context);
    context.uc_stack.ss_sp = fibers.stacks[t].get();
    context.uc_stack.ss_size = Fibers::kStackBytes;
    context.uc_link = &fibers.caller;
    makecontext(&context, enter_fiber, 0);
    if (t > 0) fibers.ready.push_back(t);
  }
  threadIdx.x = 0;
  swapcontext(&fibers.caller, fibers.contexts.data());
}

#endif

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
  run_threads(threads, [&](unsigned) {
    current = &block;
    blockDim = {threads, 1, 1};
    gridDim = {static_cast<unsigned>(grid), 1, 1};
    for (unsigned b = 0; b < static_cast<unsigned>(grid); ++b) {
      blockIdx.x = b;
      kernel(params);
      block.barrier.wait();
    }
  });
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
