// Memory of a layer that owns what its calls leave to later ones: the backend's, or that of the stream's allocator
// (stream_allocator.h) where the stream has one.
#pragma once

#include <cstddef>
#include <vector>

#include "ingot/api.h"
#include "ingot/nn/linear/linear_memory.h"
#include "ingot/runtime/backend.h"
#include "ingot/runtime/buffer.h"
#include "ingot/runtime/stream.h"

namespace ingot {

// Move-only. The backend and the allocators of all streams it was used with must outlive it. What an allocator gave
// goes back to the stream that it was taken on, so that stream must by then wait for all others that use it. Without an
// allocator, both functions are Buffer::reserve().
class INGOT_API OwnerMemory {
 public:
  // For what one forward keeps. An allocator gets back what it gave for the forward before, and gives exactly `bytes`.
  // What is captured uses memory of the graph, and leaves the rest as it is.
  MemoryRegion renew(Backend& backend, std::size_t bytes, Stream& stream);
  // For what lasts, at one place for every later call and graph: stays where it is if it suffices, and what is outgrown
  // is kept. Throws Error{invalid_argument} if it would have to grow while the stream is capturing.
  MemoryRegion reserve(Backend& backend, std::size_t bytes, Stream& stream);
  // What an allocator gave for renew() goes back to it, and what a graph holds stays.
  void give_back() { block_ = {}; }

 private:
  MemoryRegion buffer(Backend& backend, std::size_t bytes, Stream& stream);

  Buffer buffer_;
  StreamBlock block_;
  StreamBlock captured_;
  std::vector<StreamBlock> outgrown_;
};

}  // namespace ingot
