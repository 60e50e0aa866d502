// The start of every call of a layer: it reserves its streams for this thread until it ends, and takes scratch memory
// that the caller left out from the stream's allocator.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "ingot/nn/linear/linear_tensors.h"
#include "ingot/runtime/core/buffer.h"

namespace ingot {

// May the scratch of a call on this stream be left out?
inline bool gives_scratch(const Stream& stream) { return stream.allocator() != nullptr; }
// Why it may not.
std::string missing_scratch(std::size_t bytes);

// One call's use of its streams.
class LayerCall {
 public:
  // Throws Error{invalid_argument} if another thread is using one of them. A subject without the layer's name comes
  // with `name`.
  LayerCall(const std::string& subject, Stream& stream, Stream* side = nullptr, const std::string& name = {});
  LayerCall(const std::string& subject, const LinearRun& run) : LayerCall(subject, run.stream, run.side) {}

  // For a layer that owns memory: scratch of the stream's allocator until this call ends, which must be after the work
  // of a side stream; without an allocator `own`, which grows.
  MemoryRegion scratch_or(Buffer& own, DeviceApi& device_api, std::size_t bytes);

  // enqueue(tensors) with scratch: the caller's, or bytes() of the allocator's for the time of this call. `side`: the
  // side stream, if work is enqueued there; null otherwise.
  template <class Tensors, class Bytes, class Enqueue>
  void with_scratch(const Tensors& tensors, Stream* side, const Bytes& bytes, const Enqueue& enqueue) const {
    if (tensors.scratch.data != nullptr || !gives_scratch(*stream_)) return enqueue(tensors);
    const Scratch scratch(bytes(), *this, side);
    Tensors all = tensors;
    all.scratch = scratch.region();
    enqueue(all);
  }

 private:
  // Memory of the stream's allocator.
  class Scratch {
   public:
    Scratch(std::size_t bytes, const LayerCall& call, Stream* side);
    // Waits for the side stream, which may still use the memory.
    ~Scratch();
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;

    MemoryRegion region() const { return {block_.data(), bytes_}; }

   private:
    Stream* stream_;
    Stream* side_;
    std::size_t bytes_;
    StreamBlock block_;
  };

  StreamBlock block(std::size_t bytes) const;

  Stream* stream_;
  StreamUse use_;
  std::optional<StreamUse> side_;
  StreamBlock owned_scratch_;
};

}  // namespace ingot
