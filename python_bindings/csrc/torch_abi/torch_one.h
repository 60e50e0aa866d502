// A 1 in a device's memory, for factors that are folded into others: made once, as filling one in each call costs a
// small layer more than reading it.
#pragma once

#include <mutex>

#include "ingot/runtime/backend.h"
#include "ingot/runtime/buffer.h"
#include "ingot/runtime/stream.h"

namespace ingot::python {

// Threads may share it.
class TorchOne {
 public:
  // f32[1]. `backend` is always the same, and outlives this object. The first call waits for its own stream, also
  // while PyTorch captures another.
  Tensor of(Backend& backend) {
    std::call_once(once_, [&] {
      memory_ = Buffer(backend, sizeof(float));
      Stream stream(backend);
      backend.fill(static_cast<float*>(memory_.data()), 1.0F, 1, stream);
      backend.synchronize(stream);
    });
    return vector(memory_.data(), Dtype::f32, 1, backend.device());
  }

 private:
  std::once_flag once_;
  Buffer memory_;
};

}  // namespace ingot::python
