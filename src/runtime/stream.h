// Where work is enqueued, with the scratch memory of that work. Work on one stream runs in order, so one scratch serves
// all of it; two streams never share one. Not for two threads at once.
#pragma once

#include <cstddef>

#include "ingot/runtime/backend.h"
#include "ingot/runtime/buffer.h"

namespace ingot {

class Stream {
 public:
  // A stream of its own, destroyed with this object.
  explicit Stream(Backend& backend);
  // The caller's stream (PyTorch's current stream, say), which must outlive this object.
  Stream(Backend& backend, CUstream_st* handle);
  ~Stream();
  Stream(Stream&&) = delete;
  Stream& operator=(Stream&&) = delete;

  // What is enqueued from now on begins after all that `other`, of the same backend, has been given so far. In a
  // graph's capture, one of two streams that are ordered so joins the other's. Throws Error{cuda_failed,
  // invalid_argument}.
  void wait_for(const Stream& other);

  CUstream_st* handle() const { return handle_; }
  Backend& backend() const { return *backend_; }

  // Memory for one operation's intermediate results: at least `bytes`, 256-byte aligned, valid until the next call of
  // scratch() on this stream. Grows (outside of capture) and never shrinks.
  void* scratch(std::size_t bytes);
  // The same, of memory that holds zeros, and that an operation leaves as zeros: the next one, and a graph captured
  // from this stream, start from them. So a graph's replays and all other work of this object must be in one order,
  // too.
  void* zeros(std::size_t bytes);
  // An operation failed half way: the zeros are to be cleared before their next use.
  void spoil_zeros() noexcept { zeros_hold_ = false; }

 private:
  Backend* backend_;
  CUstream_st* handle_;
  bool owned_;
  Buffer scratch_;
  Buffer zeros_;
  bool zeros_hold_ = true;
  void* fence_ = nullptr;  // of wait_for(), from its first call on
};

}  // namespace ingot
