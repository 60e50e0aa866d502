// Compiles kernels ahead, on threads of its own, while the program goes on. Whoever asks the cache for one of them
// meanwhile waits only if it is being compiled at that moment; a kernel whose turn has not come is compiled at once by
// the thread that asks, so launches are served first.
#pragma once

#include <sys/types.h>

#include <memory>
#include <vector>

#include "ingot/codegen/recorded_kernels.h"

namespace ingot {

class KernelCache;

class WarmUp {
 public:
  // The longest first, for the cache's target, into the cache's memory and its store. Processes of one machine take
  // kernels of the same length in different orders, and so share the work through the store. `threads`: 0 leaves one
  // core to the program. A kernel that cannot be compiled is left to the launch that needs it, which gets the error.
  // The cache must outlive this.
  WarmUp(KernelCache& cache, std::vector<KernelPass> kernels, int threads = 0);
  // Begins no further compiles, and waits for those that have begun. In a child made by fork() it waits for nothing.
  ~WarmUp();
  WarmUp(const WarmUp&) = delete;
  WarmUp& operator=(const WarmUp&) = delete;

  // Returns when the last compile has ended.
  void wait();

 private:
  struct Work;
  std::unique_ptr<Work> work_;
  pid_t process_;  // which has the threads
};

}  // namespace ingot
