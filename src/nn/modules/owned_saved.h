// What a forward keeps for its backward, in memory of the stream's allocator (stream_allocator.h): as many bytes as the
// plan tells, given back behind the stream's work so far.
//
//   OwnedSaved saved(plan, tokens, stream);  // of a LinearPlan, a NormLinearPlan or an MlpPlan
//   linear_forward(plan, backend, {.input = x, .output = y, .codes = codes, .saved = saved.get()}, {stream});
//   linear_backward(plan, backend, {.saved = saved.get(), .grad_output = gy, ...}, {stream});
//   saved.release();                         // or the end of its scope
//
// A backward on another stream must be waited for (Stream::wait_for()) by this one before the memory goes back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "ingot/nn/linear/linear_functions.h"
#include "ingot/runtime/stream.h"

namespace ingot {

// Move-only. The stream's allocator must outlive it.
class OwnedSaved {
 public:
  OwnedSaved() = default;
  // Throws as StreamBlock does, Error{invalid_argument} for a stream without an allocator, and as plan.saved_memory().
  template <class Plan>
  OwnedSaved(const Plan& plan, std::int64_t tokens, Stream& stream)
      : block_(stream.kept(plan.saved_memory(tokens).bytes)),
        saved_{.memory = {block_.data(), block_.bytes()}},
        held_(true) {}
  OwnedSaved(OwnedSaved&& other) noexcept
      : block_(std::move(other.block_)),
        saved_(std::exchange(other.saved_, LinearSaved{})),
        held_(std::exchange(other.held_, false)) {}
  OwnedSaved& operator=(OwnedSaved&& other) noexcept {
    std::swap(block_, other.block_);
    std::swap(saved_, other.saved_);
    std::swap(held_, other.held_);
    return *this;
  }

  // For LinearForwardTensors::saved and its like. Null once released.
  LinearSaved* get() { return held_ ? &saved_ : nullptr; }
  const LinearSaved* get() const { return held_ ? &saved_ : nullptr; }
  std::size_t bytes() const { return saved_.memory.bytes; }
  void release() {
    block_ = StreamBlock();
    saved_ = {};
    held_ = false;
  }

 private:
  StreamBlock block_;
  LinearSaved saved_{};
  bool held_ = false;
};

}  // namespace ingot
