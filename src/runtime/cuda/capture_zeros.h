// Zeros for operations that someone else's capture records (PyTorch's CUDA graphs, for example). The graph's own memory
// would have to be cleared in every replay, by a node that costs a small layer two microseconds of waiting. These
// regions are cleared once, outside of the graph; every operation restores its zeros, so that they hold in each replay.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "ingot/runtime/cuda/driver.h"

namespace ingot {

class CaptureZeros {
 public:
  static constexpr std::size_t kBytes = std::size_t{64} << 10U;  // of a region
  static constexpr std::size_t kRegions = 8;                     // that are allocated at once

  CaptureZeros(const Driver& driver, int device_index);
  ~CaptureZeros();
  CaptureZeros(const CaptureZeros&) = delete;
  CaptureZeros& operator=(const CaptureZeros&) = delete;

  // The region of this stream in its capture, the same for all of its operations, aligned to 256 bytes. It is theirs
  // until the graph and all that was instantiated from it are destroyed. Null if nobody captures the stream, for more
  // than kBytes, and where there is no memory: then the caller clears its own memory. The device's context must be
  // current.
  void* of(CUstream stream, std::size_t bytes);
  // The number of the capture that the stream takes part in, of all captures of the process; 0 if in none.
  std::uint64_t capture_number(CUstream stream) const;
  // An operation failed halfway and may not restore its zeros: the capture records that they are cleared, since it may
  // be replayed, and later operations of it have another region.
  void spoil(CUstream stream) noexcept;

  // Regions that belong to captures and graphs.
  std::size_t used() const;

 private:
  struct Capture {
    std::uint64_t number;  // of all captures of the process
    CUgraph graph;
  };
  struct State;

  std::optional<Capture> capture_of(CUstream stream) const;
  void* take();
  void release() noexcept;
  bool clear(void* region);
  bool give_to(const Capture& capture, CUstream stream, void* region);

  const Driver* driver_;
  int device_index_;
  std::shared_ptr<State> state_;  // graphs may be destroyed after this object
};

}  // namespace ingot
