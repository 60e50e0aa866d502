#include "ingot/nn/modules/owner_memory.h"

#include <fmt/format.h>

#include <utility>

#include "ingot/nn/linear/tensor_checks.h"

namespace ingot {
namespace {

MemoryRegion region_of(const StreamBlock& block) { return {block.data(), block.bytes()}; }

}  // namespace

MemoryRegion OwnerMemory::buffer(Backend& backend, std::size_t bytes, Stream& stream) {
  buffer_.reserve(backend, bytes, stream);
  return {buffer_.data(), buffer_.bytes()};
}

MemoryRegion OwnerMemory::renew(Backend& backend, std::size_t bytes, Stream& stream) {
  if (stream.allocator() == nullptr) return buffer(backend, bytes, stream);
  // What was allocated outside of a capture must not be released within it.
  if (backend.capturing(stream)) {
    captured_ = stream.kept(bytes);
    return region_of(captured_);
  }
  captured_ = {};
  block_ = {};  // first, so that the allocator can give it again
  block_ = stream.kept(bytes);
  return region_of(block_);
}

MemoryRegion OwnerMemory::reserve(Backend& backend, std::size_t bytes, Stream& stream) {
  if (block_.data() != nullptr && block_.bytes() >= bytes) return region_of(block_);
  if (stream.allocator() == nullptr || (buffer_.data() != nullptr && buffer_.bytes() >= bytes)) {
    return buffer(backend, bytes, stream);
  }
  if (backend.capturing(stream)) {
    refuse_argument("stream",
                    fmt::format("is capturing a graph, and the layer needs {} bytes that outlive it, but has only {}: "
                                "run the step once before capturing it",
                                bytes, block_.bytes()));
  }
  StreamBlock grown = stream.kept(bytes);
  if (block_.data() != nullptr) outgrown_.push_back(std::move(block_));
  block_ = std::move(grown);
  return region_of(block_);
}

}  // namespace ingot
