// The Context that Python holds, with one Stream (and its scratch memory) for each CUDA stream that calls used so far.
#pragma once

#include <bit>
#include <cstdint>
#include <map>
#include <mutex>
#include <utility>

#include "ingot/runtime/context.h"
#include "ingot/runtime/stream.h"
#include "torch_one.h"
#include "torch_streams.h"

namespace ingot::python {

class PythonContext {
 public:
  explicit PythonContext(ContextOptions options) : context_(std::move(options)) {}

  Context& context() { return context_; }
  // For PyTorch's operators, which calls of several threads may be in at once.
  TorchStreams& torch_streams() { return torch_streams_; }
  Tensor torch_one() { return torch_one_.of(context_.backend()); }

  // Runs work(backend, stream) on the CUDA stream with this handle (PyTorch's `stream.cuda_stream`). Only one call runs
  // at a time.
  template <class Work>
  void run(std::uintptr_t handle, Work&& work) {
    const std::lock_guard lock(mutex_);
    const auto [entry, inserted] =
        streams_.try_emplace(handle, context_.backend(), std::bit_cast<CUstream_st*>(handle));
    work(context_.backend(), entry->second);
  }

 private:
  Context context_;
  std::mutex mutex_;
  std::map<std::uintptr_t, Stream> streams_;  // these three after context_: destroyed before it
  TorchStreams torch_streams_;
  TorchOne torch_one_;
};

}  // namespace ingot::python
