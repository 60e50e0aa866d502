#include "ingot/runtime/cuda/graph_scratch.h"

#include <algorithm>

namespace ingot {

GraphScratch::~GraphScratch() {
  for (const Part& part : parts_) {
    if (part.stream != nullptr) set(*part.stream, nullptr);
  }
}

void GraphScratch::join(Stream& stream) {
  parts_.push_back({.stream = &stream});
  set(stream, this);
}

void GraphScratch::leave(const Stream& stream) noexcept {
  for (Part& part : parts_) {
    if (part.stream == &stream) part.stream = nullptr;
  }
}

void GraphScratch::end(Stream& captured) {
  for (Part& part : parts_) {
    if (part.stream != nullptr) set(*part.stream, nullptr);
    part.stream = nullptr;
    for (const Buffer& block : part.zeros.blocks) backend_->fill_zero(block.data(), block.bytes(), captured);
  }
  backend_->synchronize(captured);
}

void GraphScratch::clear_zeros(Stream& stream) {
  const std::vector<Buffer>& blocks = part_of(stream).zeros.blocks;
  if (!blocks.empty()) backend_->fill_zero(blocks.back().data(), blocks.back().bytes(), stream);
}

GraphScratch::Part& GraphScratch::part_of(const Stream& stream) {
  return *std::find_if(parts_.begin(), parts_.end(), [&](const Part& part) { return part.stream == &stream; });
}

void* GraphScratch::Blocks::reserve(Backend& backend, std::size_t bytes) {
  if (blocks.empty() || blocks.back().bytes() < bytes) blocks.emplace_back(backend, bytes);
  return blocks.back().data();
}

}  // namespace ingot
