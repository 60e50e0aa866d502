// Zeros for operators that PyTorch captures into a CUDA graph. Some kernels need memory that is zero when they start,
// and restore it. Each operator in a capture has memory of its own, which a memset would have to fill in every replay;
// this memory is filled before the capture instead, and belongs to the graph until that is destroyed.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <vector>

#include "ingot/runtime/stream.h"
#include "torch_library.h"

namespace ingot::python {

class TorchZeros {
 public:
  // So many bytes are enough for casts of matrices of 32768 rows and columns.
  static constexpr std::size_t kBytes = std::size_t{320} << 10;

  // Those of a GPU; null for one with too high a number.
  static TorchZeros* of(int device_index);

  // Sees to it that there is memory for the next captures: PyTorch's, and filled when this returns. `stream` must be
  // PyTorch's default one, which is never captured and whose memory is of no graph's pool. Nearly always one load.
  void prepare(Backend& backend, Stream& stream);
  // Zeros for this stream's capture, the same ones at each call. Null if the stream is not being captured, if none are
  // left, and if `bytes` are more than kBytes.
  void* find(std::size_t bytes, CUstream_st* stream);
  // What find() gave for this stream's capture is no longer zero, and is given no more.
  void spoil(CUstream_st* stream) noexcept;

 private:
  struct Slot {
    TorchZeros* owner = nullptr;
    void* data = nullptr;
    std::uint64_t capture = 0;  // no two of a process have one number
    CUstream_st* stream = nullptr;
    std::atomic<bool> spoiled{false};
    std::atomic<bool> taken{false};
  };

  // Called by the driver when a graph and all that was made of it are gone.
  static void give_back(void* slot);
  Slot* slot_of(std::uint64_t capture, const CUstream_st* stream);
  Slot* take(void* graph);

  std::mutex mutex_;
  std::vector<TorchTensor> memory_;
  std::deque<Slot> slots_;
  std::atomic<int> spare_{0};
};

}  // namespace ingot::python
