// A stream: where work is enqueued, with scratch memory for that work. Work on one stream runs in order, so it can all
// share one scratch; two streams never do. Only one thread at a time may use a stream.
#pragma once

#include <cstddef>

#include "ingot/api.h"
#include "ingot/runtime/backend.h"
#include "ingot/runtime/buffer.h"

namespace ingot {

class INGOT_API Stream {
 public:
  // Creates a stream, and destroys it with this object.
  explicit Stream(Backend& backend);
  // Uses the caller's stream (PyTorch's current one, for example), which must outlive this object.
  Stream(Backend& backend, CUstream_st* handle);
  ~Stream();
  Stream(Stream&&) = delete;
  Stream& operator=(Stream&&) = delete;

  // Work enqueued here from now on starts after all work enqueued so far on `other`, a stream of the same backend. If
  // one of the two is capturing a graph, the other joins the capture. Throws Error{cuda_failed, invalid_argument}.
  void wait_for(const Stream& other);

  CUstream_st* handle() const { return handle_; }
  Backend& backend() const { return *backend_; }

  // Memory for one operation's intermediate results: at least `bytes`, aligned to 256 bytes, valid until the next call
  // of scratch() on this stream. It grows (but not during a capture) and never shrinks.
  void* scratch(std::size_t bytes);
  // Likewise, but filled with zeros, which each operation must restore: the next operation, and a graph captured from
  // this stream, rely on them. A graph's replays and all other work of this object must therefore run in one order,
  // too.
  void* zeros(std::size_t bytes);
  // Call this after an operation failed halfway: the zeros are cleared before their next use.
  void spoil_zeros() noexcept { zeros_hold_ = false; }

 private:
  Backend* backend_;
  CUstream_st* handle_;
  bool owned_;
  Buffer scratch_;
  Buffer zeros_;
  bool zeros_hold_ = true;
  void* fence_ = nullptr;  // of wait_for(); created by its first call
};

}  // namespace ingot
