// The calling thread and the workers take ranges of a loop from an atomic counter until none is left. The caller
// returns when no worker is inside the loop any more, because the loop is on the caller's stack.
#include "ingot/runtime/cpu/thread_pool.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace ingot {

struct ThreadPool::Loop {
  std::int64_t count;
  std::int64_t grain;
  const Body* body;
  std::atomic<std::int64_t> next{0};
  std::mutex error_mutex{};
  std::exception_ptr error{};

  void run() {
    for (;;) {
      const std::int64_t begin = next.fetch_add(grain);
      if (begin >= count) return;
      try {
        (*body)(begin, std::min(begin + grain, count));
      } catch (...) {
        const std::lock_guard lock(error_mutex);
        if (!error) error = std::current_exception();
        return;
      }
    }
  }
};

struct ThreadPool::Workers {
  explicit Workers(int count);
  ~Workers();
  void run(Loop& loop);
  void work();

  std::vector<std::thread> threads;
  std::mutex in_use;  // held by the caller whose loop has the workers

  std::mutex mutex;  // guards all below
  std::condition_variable changed;
  std::condition_variable left;
  Loop* loop = nullptr;
  std::uint64_t loops = 0;  // loops begun: lets a worker distinguish a new one from the one it has just left
  int inside = 0;           // workers that are in *loop
  bool stopping = false;
};

ThreadPool::Workers::Workers(int count) {
  threads.reserve(static_cast<std::size_t>(count));
  try {
    for (int i = 0; i < count; ++i) threads.emplace_back([this] { work(); });
  } catch (const std::exception&) {  // system_error or bad_alloc
    // A process at its limit of threads or memory computes the same with the workers it has.
  }
}

ThreadPool::Workers::~Workers() {
  {
    const std::lock_guard lock(mutex);
    stopping = true;
  }
  changed.notify_all();
  for (std::thread& thread : threads) thread.join();
}

// The caller holds in_use.
void ThreadPool::Workers::run(Loop& of_caller) {
  {
    const std::lock_guard lock(mutex);
    loop = &of_caller;
    ++loops;
  }
  changed.notify_all();
  of_caller.run();
  std::unique_lock lock(mutex);
  loop = nullptr;  // a worker that wakes only now finds nothing to do
  left.wait(lock, [this] { return inside == 0; });
}

void ThreadPool::Workers::work() {
  std::uint64_t seen = 0;
  std::unique_lock lock(mutex);
  for (;;) {
    changed.wait(lock, [&] { return stopping || (loop != nullptr && loops != seen); });
    if (stopping) return;
    seen = loops;
    Loop* const entered = loop;
    ++inside;
    lock.unlock();
    entered->run();
    lock.lock();
    --inside;
    if (inside == 0) left.notify_one();
  }
}

ThreadPool::ThreadPool(int threads) : process_(::getpid()) {
  const int wanted = threads > 0 ? threads : static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  workers_ = std::make_unique<Workers>(wanted - 1);
}

// In a forked child nothing can be given back: destroying a condition variable on which a lost thread waited waits for
// that thread.
ThreadPool::~ThreadPool() {
  if (process_ != ::getpid()) static_cast<void>(workers_.release());
}

bool ThreadPool::has_workers() const { return !workers_->threads.empty() && process_ == ::getpid(); }

int ThreadPool::threads() const { return has_workers() ? static_cast<int>(workers_->threads.size()) + 1 : 1; }

void ThreadPool::parallel_for(std::int64_t count, std::int64_t grain, const Body& body) {
  Loop loop{.count = count, .grain = grain, .body = &body};
  std::unique_lock<std::mutex> in_use;
  if (count > grain && has_workers()) in_use = std::unique_lock(workers_->in_use, std::try_to_lock);
  if (in_use) {
    workers_->run(loop);
  } else {
    loop.run();
  }
  if (loop.error) std::rethrow_exception(loop.error);
}

}  // namespace ingot
