// Streams for PyTorch's operators. Their scratch memory is PyTorch's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "ingot/runtime/context/backend.h"
#include "ingot/runtime/core/buffer.h"
#include "ingot/runtime/core/stream.h"
#include "ingot/runtime/util/fork_mutex.h"
#include "torch_abi/torch_library.h"

namespace ingot::python {

// PyTorch's caching allocator, for one stream of one thread: PyTorch orders its memory by the thread's current stream,
// which is this one, or one that waits for it. It keeps a returned small block for the next call, because a small layer
// waits for each call of PyTorch's allocator.
class TorchAllocator final : public StreamAllocator {
 public:
  static constexpr std::size_t kSmall = std::size_t{1} << 20;  // a block of at most this many bytes is kept

  // holds: what comes back is kept until this object ends, because work on a stream that PyTorch does not know of may
  // still use it.
  explicit TorchAllocator(Device device, bool holds = false) : device_(device), holds_(holds) {}

  void* allocate(std::size_t bytes, CUstream_st* stream) override;
  void release(void* data, std::size_t bytes, CUstream_st* stream) noexcept override;
  // Of the block for the next call; 0 if there is none.
  std::size_t kept_bytes() const { return kept_.bytes; }

 private:
  struct Block {
    void* data = nullptr;
    std::size_t bytes = 0;
    TorchTensor memory{};
  };

  Device device_;
  bool holds_;
  std::vector<Block> blocks_{};
  Block kept_{};
};

class TorchStream {
 public:
  TorchStream(DeviceApi& device_api, CUstream_st* handle, bool holds = false);
  Stream& stream() { return stream_; }

 private:
  TorchAllocator allocator_;
  Stream stream_;
};

// A thread keeps one stream for PyTorch's default stream, as two threads may enqueue on that, and drops it when it
// ends. On any other stream of PyTorch's each call has its own stream, so that nothing of PyTorch's memory
// outlives a call: it may belong to a graph that is being captured, or, when a compiler warms up a graph, to the
// graph's pool, where PyTorch accounts for every block. So has a call of many tokens, whose scratch (32 MiB for
// cuBLASLt alone, in each thread) would stay allocated in addition to what other layers need, while allocating it
// costs such a call no noticeable time.
class TorchStreams {
 public:
  // From here on a call has many tokens.
  static constexpr std::int64_t kManyTokens = 4096;

  TorchStreams();

  // The stream for PyTorch's current one, in `own` if it is of this call alone. Locks only at a thread's first call.
  Stream& current(DeviceApi& device_api, std::optional<TorchStream>& own, std::int64_t tokens = 0) const;
  // A side stream for work concurrent with one of PyTorch's streams, made once for each.
  CUstream_st* beside(DeviceApi& device_api, CUstream_st* stream) const;
  // How many streams threads keep.
  std::size_t count() const;

 private:
  friend class ThreadStreams;

  struct Kept {
    ForkMutex mutex;
    std::vector<std::unique_ptr<TorchStream>> streams;
    std::map<CUstream_st*, std::unique_ptr<Stream>> beside;
  };

  std::uint64_t serial_;  // no other object has it, so that a thread finds only streams of this one
  std::shared_ptr<Kept> kept_;
};

// A 1 in a device's memory, for scale_inv that are folded into others: made once, as filling one in each call costs a
// small layer more than reading it. Threads may share it.
class TorchOne {
 public:
  // f32[1]. `device_api` is always the same, and outlives this object. The first call waits for its own stream, also
  // while PyTorch captures another.
  Tensor of(DeviceApi& device_api) {
    std::call_once(once_, [&] {
      memory_ = Buffer(device_api, sizeof(float));
      Stream stream(device_api);
      device_api.fill(static_cast<float*>(memory_.data()), 1.0F, 1, stream);
      device_api.synchronize(stream);
    });
    return vector(memory_.data(), Dtype::f32, 1, device_api.device());
  }

 private:
  std::once_flag once_;
  Buffer memory_;
};

}  // namespace ingot::python
