#include "ingot/runtime/util/stream_allocator.h"

#include <fmt/format.h>

#include <cstdint>

#include "ingot/runtime/util/error.h"

namespace ingot {

StreamBlock::StreamBlock(StreamAllocator& allocator, CUstream_st* stream, std::size_t bytes)
    : allocator_(&allocator), stream_(stream) {
  if (bytes == 0) return;
  data_ = allocator.allocate(bytes, stream);
  bytes_ = bytes;
  if (data_ == nullptr) {
    throw Error(ErrorCode::out_of_memory, "stream allocator",
                fmt::format("gave null for {} bytes; let it throw, or release memory", bytes));
  }
  constexpr std::uintptr_t kAlignment = 256;
  if (reinterpret_cast<std::uintptr_t>(data_) % kAlignment == 0) return;
  release();
  throw Error(ErrorCode::invalid_argument, "stream allocator",
              fmt::format("gave an address that is no multiple of {}; align its memory", kAlignment));
}

void StreamBlock::release() noexcept {
  if (data_ != nullptr && allocator_ != nullptr) allocator_->release(data_, bytes_, stream_);
  data_ = nullptr;
}

}  // namespace ingot
