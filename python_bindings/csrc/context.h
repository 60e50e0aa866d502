// The Context that Python holds, with the Streams (and their scratch memory) of the CUDA streams that calls used so
// far.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ingot/runtime/context/context.h"
#include "ingot/runtime/core/stream.h"
#include "ingot/runtime/util/fork_mutex.h"
#include "torch_abi/torch_streams.h"

namespace ingot::python {

class PythonContext {
 public:
  explicit PythonContext(ContextOptions options) : context_(std::move(options)) {}

  Context& context() { return context_; }
  // For PyTorch's operators, which calls of several threads may be in at once.
  TorchStreams& torch_streams() { return torch_streams_; }
  Tensor torch_one() { return torch_one_.of(context_.backend()); }

  ContextInfo info() const;
  // Why "auto" is this CPU context, for info(), where the context was made by the name "cpu".
  void set_reason(const std::string& reason);

  // Runs work(backend, stream) on the CUDA stream with this handle (PyTorch's `stream.cuda_stream`). Calls of several
  // threads may run at once: each has a Stream that no other call is using.
  template <class Work>
  void run(std::uintptr_t handle, Work&& work) {
    const Use use(*this, handle);
    work(context_.backend(), use.stream());
  }

 private:
  // A stream for one call, which later calls on the same handle take over.
  class Use {
   public:
    Use(PythonContext& context, std::uintptr_t handle)
        : context_(&context), handle_(handle), stream_(context.take_stream(handle)) {}
    ~Use() { context_->give_stream(handle_, std::move(stream_)); }
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;

    Stream& stream() const { return *stream_; }

   private:
    PythonContext* context_;
    std::uintptr_t handle_;
    std::unique_ptr<Stream> stream_;
  };

  std::unique_ptr<Stream> take_stream(std::uintptr_t handle);
  void give_stream(std::uintptr_t handle, std::unique_ptr<Stream> stream) noexcept;

  Context context_;
  mutable ForkMutex mutex_;  // guards the next two
  std::string reason_;
  std::map<std::uintptr_t, std::vector<std::unique_ptr<Stream>>> idle_;  // these three after context_: destroyed before
  TorchStreams torch_streams_;
  TorchOne torch_one_;
};

// "auto", "cpu", "cuda" or "cuda:1", and the environment. Throws Error{invalid_argument}.
ContextOptions context_options(const std::string& device);

// The context that all of Ingot's functions use on a device, made at the first call: one a device under all of its
// names, whatever threads ask for it at once, and one anew in a forked child where a thread of the parent was making
// it. It lives as long as the process. Neither needs Python's lock (the GIL) nor should be called with it, as making a
// context takes a while. Throws Error{invalid_argument, not_found, ...}.
PythonContext& shared_context(const std::string& device);
PythonContext& shared_context(Device device);

// At Python's end, as the contexts are never destroyed: the end of what runs in the background, and the reports.
void end_shared_contexts();

}  // namespace ingot::python
