// Runs the kernels of templates/ on the host: a fiber for each thread of a block, one block after the other; the blocks
// of a cluster together. (Those may use dynamic shared memory only: static shared memory is the same for all.) It is
// slow but exact: a kernel reads, writes and waits as it would on a GPU. So a machine without a GPU can test a kernel's
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
#undef _FORTIFY_SOURCE  // before any header: its longjmp() refuses to go to another stack

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
#include <setjmp.h>
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

// Runs body(t) for each of `threads` threads. `enter(t)` is called whenever thread t begins to run or runs on.
template <class Enter, class Body>
void run_threads(unsigned threads, const Enter& enter, const Body& body) {
  std::vector<std::thread> pool;
  for (unsigned t = 0; t < threads; ++t) {
    pool.emplace_back([&enter, &body, t] {
      enter(t);
      body(t);
    });
  }
  for (auto& thread : pool) thread.join();
}

#else

// A fiber begins by setcontext(), and goes on by _longjmp(), which, unlike swapcontext(), makes no system call.
struct Fiber {
  static constexpr std::size_t kStackBytes = 256 * 1024;

  std::unique_ptr<std::byte[]> stack{new std::byte[kStackBytes]};
  ucontext_t beginning{};
  jmp_buf place{};
  bool begun = false;
};

// The fibers of this host thread.
struct Fibers {
  std::deque<Fiber> all{};  // kept for the next launch
  std::deque<unsigned> ready{};
  jmp_buf caller{};
  unsigned running = 0;
  std::function<void(unsigned)> enter{};
  std::function<void(unsigned)> body{};
};
inline thread_local Fibers fibers;

// Takes the next fiber that can run.
inline unsigned take_next() {
  fibers.running = fibers.ready.front();
  fibers.ready.pop_front();
  fibers.enter(fibers.running);
  return fibers.running;
}

[[noreturn]] inline void go_on_with(unsigned next) {
  Fiber& fiber = fibers.all[next];
  if (fiber.begun) _longjmp(fiber.place, 1);
  fiber.begun = true;
  setcontext(&fiber.beginning);
  std::abort();  // setcontext() failed
}

// Goes on with the next fiber that can run. Returns when fiber `from` is the next one again.
inline void run_next(unsigned from) {
  if (fibers.ready.empty()) {
    std::fputs("emulator: all threads wait at barriers that the others do not reach\n", stderr);
    std::abort();
  }
  const unsigned next = take_next();
  if (next != from && _setjmp(fibers.all[from].place) == 0) go_on_with(next);
}

class Barrier {
 public:
  explicit Barrier(unsigned count) : count_(count) {}
  Barrier(const Barrier&) = delete;
  Barrier& operator=(const Barrier&) = delete;

  void wait() {
    const unsigned me = fibers.running;
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

// The function of a fiber: the body, and in the next launch again.
[[noreturn]] inline void run_bodies() {
  for (;;) {
    fibers.body(fibers.running);
    if (_setjmp(fibers.all[fibers.running].place) != 0) continue;
    if (fibers.ready.empty()) _longjmp(fibers.caller, 1);  // it was the last one
    go_on_with(take_next());
  }
}

// Runs body(t) for each of `threads` threads. `enter(t)` is called whenever thread t begins to run or runs on.
template <class Enter, class Body>
void run_threads(unsigned threads, const Enter& enter, const Body& body) {
  fibers.enter = enter;
  fibers.body = body;
  while (fibers.all.size() < threads) {
    Fiber& fiber = fibers.all.emplace_back();
    getcontext(&fiber.beginning);
    fiber.beginning.uc_stack.ss_sp = fiber.stack.get();
    fiber.beginning.uc_stack.ss_size = Fiber::kStackBytes;
    makecontext(&fiber.beginning, run_bodies, 0);
  }
  for (unsigned t = 0; t < threads; ++t) fibers.ready.push_back(t);
  if (_setjmp(fibers.caller) == 0) go_on_with(take_next());
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

// The blocks that run together.
struct Cluster {
  Cluster(unsigned count, unsigned threads, unsigned shared_bytes) : barrier(count * threads) {
    for (unsigned i = 0; i < count; ++i) blocks.push_back(std::make_unique<Block>(threads, shared_bytes));
  }
  Barrier barrier;
  std::vector<std::unique_ptr<Block>> blocks{};
};

inline thread_local Block* current = nullptr;
inline thread_local Cluster* current_cluster = nullptr;

struct Shape {
  std::int64_t grid;          // blocks along x
  std::int64_t grid_y = 1;    // blocks along y
  unsigned threads;           // of a block, a multiple of 32
  unsigned cluster = 1;       // blocks of a cluster; divides the grid
  unsigned shared_bytes = 0;  // dynamic shared memory of a block
};

// Runs kernel(params).
template <class Kernel, class Params>
void launch(Kernel kernel, const Shape& shape, const Params& params) {
  Cluster cluster(shape.cluster, shape.threads, shape.shared_bytes);
  std::vector<unsigned> turns(shape.cluster * shape.threads);  // each thread's cluster
  const auto enter = [&](unsigned t) {
    const unsigned rank = t / shape.threads;
    current_cluster = &cluster;
    current = cluster.blocks[rank].get();
    threadIdx.x = t % shape.threads;
    const unsigned block = turns[t] * shape.cluster + rank;
    blockIdx.x = block % static_cast<unsigned>(shape.grid);
    blockIdx.y = block / static_cast<unsigned>(shape.grid);
    blockDim = {shape.threads, 1, 1};
    gridDim = {static_cast<unsigned>(shape.grid), static_cast<unsigned>(shape.grid_y), 1};
  };
  run_threads(shape.cluster * shape.threads, enter, [&](unsigned t) {
    while (turns[t] < static_cast<unsigned>(shape.grid * shape.grid_y) / shape.cluster) {
      kernel(params);
      cluster.barrier.wait();
      ++turns[t];
      enter(t);
    }
  });
}

// The same without clusters.
template <class Kernel, class Params>
void launch(Kernel kernel, std::int64_t grid, unsigned threads, const Params& params, unsigned shared_bytes = 0) {
  launch(kernel, {.grid = grid, .threads = threads, .shared_bytes = shared_bytes}, params);
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
inline unsigned __shfl_up_sync(unsigned, unsigned value, unsigned by) {
  return shuffle(value, threadIdx.x % 32 < by ? threadIdx.x : threadIdx.x - by);
}

// The block's dynamic shared memory, and that of a block of its cluster.
inline unsigned char* host_shared_memory() { return emulator::current->shared.data()->bytes; }
inline unsigned char* host_shared_memory(unsigned rank) {
  return emulator::current_cluster->blocks[rank]->shared.data()->bytes;
}
inline unsigned host_cluster_blocks() { return static_cast<unsigned>(emulator::current_cluster->blocks.size()); }
inline void host_cluster_wait() { emulator::current_cluster->barrier.wait(); }
inline void host_check(bool holds, const char* otherwise) {
  if (holds) return;
  std::fprintf(stderr, "emulator: %s\n", otherwise);
  std::abort();
}

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

inline unsigned atomicMin(unsigned* target, unsigned value) {
  const std::atomic_ref<unsigned> shared(*target);
  unsigned seen = shared.load();
  while (seen > value && !shared.compare_exchange_weak(seen, value)) {}
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
