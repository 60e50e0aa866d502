// What a layer's run is given: a backend, a stream, and tensors that hold zeros.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "ingot/nn/linear/linear_memory.h"
#include "ingot/runtime/context/backend.h"
#include "ingot/runtime/core/buffer.h"
#include "ingot/runtime/core/stream.h"

namespace ingot {

// Tensors of one device.
class Zeros {
 public:
  Zeros(Backend& backend, Stream& stream) : backend_(&backend), stream_(&stream) {}

  OwnedTensor operator()(Dtype dtype, std::int64_t rows, std::int64_t cols) const {
    OwnedTensor tensor(*backend_, dtype, rows, cols);
    backend_->device_api().fill_zero(tensor.view().data, byte_span(tensor, "tensor of a layer's run"), *stream_);
    return tensor;
  }
  OwnedTensor bytes(std::size_t count) const {
    constexpr std::size_t kLeast = 1;
    return (*this)(Dtype::u8, 1, static_cast<std::int64_t>(std::max(count, kLeast)));
  }

 private:
  Backend* backend_;
  Stream* stream_;
};

struct RunResources {
  Backend& backend;
  Stream& stream;
  Zeros zeros;
};

// Of a tensor of bytes.
inline MemoryRegion region_of(const OwnedTensor& bytes) {
  const Tensor& view = bytes.view();
  return {view.data, static_cast<std::size_t>(view.cols)};
}

}  // namespace ingot
