// A pool of threads for loops with independent iterations. How a loop is cut into ranges depends only on its length,
// never on the number of threads, and so neither do results.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace ingot {

class ThreadPool {
 public:
  using Body = std::function<void(std::int64_t begin, std::int64_t end)>;

  // 0 = all cores. The calling thread is one of them.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls body on the ranges [0, grain), [grain, 2 * grain), ... of [0, count) and returns when all are done. Rethrows
  // the first exception of a body. Thread-safe: one loop at a time gets the workers, the others run on their callers'
  // threads.
  void parallel_for(std::int64_t count, std::int64_t grain, const Body& body);

 private:
  struct Loop;
  void work();

  std::vector<std::thread> workers_;
  std::mutex in_use_;  // held by the caller whose loop has the workers

  std::mutex mutex_;  // guards all below
  std::condition_variable changed_;
  std::condition_variable left_;
  Loop* loop_ = nullptr;
  std::uint64_t loops_ = 0;  // loops begun: tells a worker a new one from the one it has just left
  int inside_ = 0;           // workers that are in *loop_
  bool stopping_ = false;
};

}  // namespace ingot
