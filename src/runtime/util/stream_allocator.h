// Device memory from the program's own allocator (PyTorch's, for example), which operations use during a step.
#pragma once

#include <cstddef>
#include <utility>

#include "ingot/api.h"

struct CUstream_st;  // the driver API's CUstream is a pointer to this

namespace ingot {

// Ordered on streams: memory may be released while work that uses it is still enqueued on its stream, and only later
// work of that stream may then get it. Any thread may call it, if streams of several threads use it.
class INGOT_API StreamAllocator {
 public:
  virtual ~StreamAllocator() = default;
  StreamAllocator(const StreamAllocator&) = delete;
  StreamAllocator& operator=(const StreamAllocator&) = delete;

  // At least `bytes` (never 0), at a multiple of 256. An exception ends the operation, before anything is enqueued that
  // would use the memory.
  virtual void* allocate(std::size_t bytes, CUstream_st* stream) = 0;
  // Releases memory of allocate(), with the same bytes and stream.
  virtual void release(void* data, std::size_t bytes, CUstream_st* stream) noexcept = 0;

 protected:
  StreamAllocator() = default;
};

// Memory of a StreamAllocator, released with this object. Move-only.
class INGOT_API StreamBlock {
 public:
  StreamBlock() = default;
  // 0 bytes: none. Throws Error{out_of_memory, invalid_argument} if the allocator gives null or an address that is no
  // multiple of 256, and what it throws itself.
  StreamBlock(StreamAllocator& allocator, CUstream_st* stream, std::size_t bytes);
  // Memory of someone else, which this object does not release.
  static StreamBlock borrowed(void* data, std::size_t bytes) {
    StreamBlock block;
    block.data_ = data;
    block.bytes_ = bytes;
    return block;
  }
  ~StreamBlock() { release(); }
  StreamBlock(StreamBlock&& other) noexcept
      : allocator_(other.allocator_),
        stream_(other.stream_),
        data_(std::exchange(other.data_, nullptr)),
        bytes_(std::exchange(other.bytes_, 0)) {}
  StreamBlock& operator=(StreamBlock&& other) noexcept {
    std::swap(allocator_, other.allocator_);
    std::swap(stream_, other.stream_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }

  void* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

 private:
  void release() noexcept;

  StreamAllocator* allocator_ = nullptr;
  CUstream_st* stream_ = nullptr;
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace ingot
