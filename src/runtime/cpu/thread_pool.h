// A pool of threads for loops with independent iterations. How a loop is cut into ranges depends only on its length,
// never on the number of threads, and so neither do results.
//
// A child made by fork() has none of its parent's threads. There a pool that the parent made runs its loops on the
// calling thread, and is destroyed without waiting for anyone.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>

namespace ingot {

class ThreadPool {
 public:
  using Body = std::function<void(std::int64_t begin, std::int64_t end)>;

  // 0 = all cores. The calling thread is one of them. With fewer where the process can have no more.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const;

  // Calls body on the ranges [0, grain), [grain, 2 * grain), ... of [0, count) and returns when all are done. Rethrows
  // the first exception of a body. Thread-safe: one loop at a time gets the workers, the others run on their callers'
  // threads.
  void parallel_for(std::int64_t count, std::int64_t grain, const Body& body);

 private:
  struct Loop;
  struct Workers;
  bool has_workers() const;

  std::unique_ptr<Workers> workers_;
  pid_t process_;  // which has the workers
};

}  // namespace ingot
