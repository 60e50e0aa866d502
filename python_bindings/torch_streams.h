// Streams for PyTorch's operators: one for each thread and each stream of PyTorch's that it uses, as two threads may
// enqueue on one. Their scratch memory is PyTorch's.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "ingot/runtime/stream.h"
#include "torch_library.h"

namespace ingot::python {

// PyTorch's caching allocator, for one stream of one thread: PyTorch takes the stream from its current one.
class TorchAllocator final : public StreamAllocator {
 public:
  explicit TorchAllocator(Device device) : device_(device) {}

  void* allocate(std::size_t bytes, CUstream_st* stream) override;
  void release(void* data, std::size_t bytes, CUstream_st* stream) noexcept override;

 private:
  Device device_;
  std::vector<std::pair<void*, TorchTensor>> blocks_;
};

class TorchStream {
 public:
  TorchStream(Backend& backend, CUstream_st* handle);
  Stream& stream() { return stream_; }

 private:
  TorchAllocator allocator_;
  Stream stream_;
};

class TorchStreams {
 public:
  TorchStreams();

  // The stream for PyTorch's current one. A stream that captures a graph gets an object for this call alone, in `own`:
  // its memory belongs to that graph. Locks only at a thread's first call on a stream.
  Stream& current(Backend& backend, std::optional<TorchStream>& own);

 private:
  std::uint64_t serial_;  // no other object has it, so that a thread finds only streams of this one
  std::mutex mutex_;
  std::vector<std::unique_ptr<TorchStream>> streams_;
};

}  // namespace ingot::python
