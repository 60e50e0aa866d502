// What every call of a layer begins with: its streams are this thread's until it ends, and scratch memory that the
// caller left out comes from the stream's allocator.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "ingot/nn/linear_functions.h"

namespace ingot {

// One call's use of its streams. A subject without the layer's name comes with `name`.
class LayerCall {
 public:
  // Throws Error{invalid_argument} if another thread is using one of them.
  LayerCall(const std::string& subject, Stream& stream, Stream* side = nullptr, const std::string& name = {});
  LayerCall(const std::string& subject, const LinearRun& run) : LayerCall(subject, run.stream, run.side) {}

 private:
  StreamUse use_;
  std::optional<StreamUse> side_;
};

// Memory of the stream's allocator for the scratch of one call.
class AllocatedScratch {
 public:
  // `side`: the stream beside, if this call enqueues work there; null otherwise.
  AllocatedScratch(std::size_t bytes, Stream& stream, Stream* side)
      : stream_(&stream), side_(side), bytes_(bytes), block_(stream.call_scratch(bytes)) {}
  // Behind the work of the side stream, which may use the memory still.
  ~AllocatedScratch();
  AllocatedScratch(const AllocatedScratch&) = delete;
  AllocatedScratch& operator=(const AllocatedScratch&) = delete;

  MemoryRegion region() const { return {block_.data(), bytes_}; }

 private:
  Stream* stream_;
  Stream* side_;
  std::size_t bytes_;
  StreamBlock block_;
};

// May the scratch of a call on this stream be left out?
inline bool gives_scratch(const Stream& stream) { return stream.allocator() != nullptr; }
// Why it may not.
std::string missing_scratch(std::size_t bytes);

// enqueue(tensors) with scratch: the caller's, or bytes() of the allocator's for the time of this call. `side` as in
// AllocatedScratch.
template <class Tensors, class Bytes, class Enqueue>
void with_scratch(const Tensors& tensors, Stream& stream, Stream* side, const Bytes& bytes, const Enqueue& enqueue) {
  if (tensors.scratch.data != nullptr || !gives_scratch(stream)) return enqueue(tensors);
  const AllocatedScratch scratch(bytes(), stream, side);
  Tensors all = tensors;
  all.scratch = scratch.region();
  enqueue(all);
}

}  // namespace ingot
