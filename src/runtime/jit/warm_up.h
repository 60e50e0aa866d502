// Compiles kernels ahead, on its own threads, while the program goes on. Whoever asks the cache for one of them
// meanwhile waits only if it is being compiled at that moment; a kernel that is still waiting is compiled at once by
// the thread that asks, so launches are served first.
#pragma once

#include <sys/types.h>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>
#include "ingot/codegen/recording.h"
#include "ingot/codegen/types/target.h"
#include "ingot/runtime/jit/kernel_cache.h"

namespace ingot {

struct WarmUpOptions {
  std::optional<Target> target{};  // not set: the cache's
  std::optional<int> threads{};    // not set: one per core but one, which is left to the program; 0: none, for finish()
  // Told why there is no list, by a thread of the warm-up; must not throw.
  std::function<void(const std::string&)> warn{};
};

class WarmUp {
 public:
  // Says which kernels. Is called once, by a thread of the warm-up; once `stop()` is true, nobody needs the answer.
  using List = std::function<std::vector<KernelPass>(const std::function<bool()>& stop)>;

  // The longest first, into the cache's memory and its store. Processes of one machine take kernels of the same length
  // in different orders, and so share the work through the store. A kernel that cannot be compiled is left to the
  // launch that needs it, which gets the error. The cache must outlive this.
  WarmUp(KernelCache& cache, List list, const WarmUpOptions& options = {});
  WarmUp(KernelCache& cache, std::vector<KernelPass> kernels, const WarmUpOptions& options = {});
  // Begins no further compiles, and waits for those that have begun. In a child made by fork() it waits for nothing.
  ~WarmUp();
  WarmUp(const WarmUp&) = delete;
  WarmUp& operator=(const WarmUp&) = delete;

  // Begins no further compiles, and does not wait.
  void stop();
  // Has everything been compiled, or stopped?
  bool has_ended() const;
  // Returns when the last compile has ended.
  void wait();
  // As wait(), and the calling thread compiles too. Throws the error of the first kernel, in the list's order, that
  // could not be compiled.
  void finish();

 private:
  struct Work;
  std::unique_ptr<Work> work_;
  pid_t process_;  // which has the threads
};

// Roughly how long a kernel takes to compile; a unit is 0.2 s of one core. Whoever compiles many begins with the
// longest, so that none is left to run alone at the end.
double compile_cost(const KernelSpec& spec);

// A WarmUp that is waited for: compiles all passes of every spec that the store lacks, on `threads` threads (0: one
// per core), the calling one among them. When all have ended, throws the error of the first in `specs` that failed.
void warm(KernelCache& cache, std::span<const KernelSpec> specs, Target target, int threads);

// Compiles and loads kernels, and returns when all are there. On the calling thread and on threads that it starts
// (WarmUp). `progress` is called on the calling thread, after each kernel. When all have been tried, throws the error
// of the first, in the list's order, that failed.
void prepare_kernels(KernelCache& cache, const std::vector<KernelPass>& kernels,
                     const std::function<void(const PrepareProgress&)>& progress);

// Likewise for any target and without a GPU: compiles into the store, and loads nothing.
void compile_kernels(KernelCache& cache, const std::vector<KernelPass>& kernels, Target target,
                     const std::function<void(const PrepareProgress&)>& progress);

}  // namespace ingot
