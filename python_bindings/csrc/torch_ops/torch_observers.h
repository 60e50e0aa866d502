// Who watches the layers that PyTorch's operators run: a Monitor, NVTX ranges, a trace. An operator asks for them at
// its beginning, on any thread; where nobody watches that is one load and one comparison.
#pragma once

#include <unistd.h>

#include <atomic>
#include <memory>
#include <vector>

#include "ingot/nn/observe/observer.h"
#include "ingot/runtime/util/fork_mutex.h"

namespace ingot::python {

class TorchObservers {
 public:
  // PyTorch calls plain functions, so what they share cannot be passed to them.
  static TorchObservers& of_process();

  // All observers of the backend's layers as one; null if there are none. A call keeps it until its end, so that an
  // observer which is removed meanwhile sees the ends of all that it saw begin.
  std::shared_ptr<LayerObserver> of(const Backend& backend) {
    if (count_.load(std::memory_order_acquire) == 0) return nullptr;
    return find(backend);
  }

  // backend: null for those of every device.
  void add(const Backend* backend, std::shared_ptr<LayerObserver> observer);
  // Does nothing if it was not added.
  void remove(const LayerObserver* observer);

 private:
  struct Entry {
    const Backend* backend;
    std::shared_ptr<LayerObserver> observer;
    pid_t process;  // that it watches: a forked child of it may lack a thread that an observer waits for
  };

  std::shared_ptr<LayerObserver> find(const Backend& backend);

  std::atomic<int> count_{0};
  ForkMutex mutex_;
  std::vector<Entry> entries_;
};

}  // namespace ingot::python
