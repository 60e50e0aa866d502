// The calling thread and the workers take ranges of a loop from an atomic counter until none is left. The caller
// returns when no worker is inside the loop any more, because the loop lies on the caller's stack.
#include "ingot/runtime/cpu/thread_pool.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <system_error>

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

ThreadPool::ThreadPool(int threads) {
  const int wanted = threads > 0 ? threads : static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  workers_.reserve(static_cast<std::size_t>(wanted));
  try {
    for (int i = 1; i < wanted; ++i) workers_.emplace_back([this] { work(); });
  } catch (const std::system_error&) {
    // A process at its thread limit computes the same with the workers it has.
  }
}

ThreadPool::~ThreadPool() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::parallel_for(std::int64_t count, std::int64_t grain, const Body& body) {
  Loop loop{.count = count, .grain = grain, .body = &body};
  std::unique_lock workers(in_use_, std::defer_lock);
  if (count <= grain || workers_.empty() || !workers.try_lock()) {
    loop.run();
  } else {
    {
      const std::lock_guard lock(mutex_);
      loop_ = &loop;
      ++loops_;
    }
    changed_.notify_all();
    loop.run();
    std::unique_lock lock(mutex_);
    loop_ = nullptr;  // a worker that wakes only now finds nothing to do
    left_.wait(lock, [this] { return inside_ == 0; });
  }
  if (loop.error) std::rethrow_exception(loop.error);
}

void ThreadPool::work() {
  std::uint64_t seen = 0;
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stopping_ || (loop_ != nullptr && loops_ != seen); });
    if (stopping_) return;
    seen = loops_;
    Loop* const loop = loop_;
    ++inside_;
    lock.unlock();
    loop->run();
    lock.lock();
    --inside_;
    if (inside_ == 0) left_.notify_one();
  }
}

}  // namespace ingot
