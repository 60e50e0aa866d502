#include "ingot/nn/linear/linear_memory.h"

namespace ingot {

Tensor TensorPlace::in(const MemoryRegion& region, Device device) const {
  if (!used) return {};
  void* const data = region.data == nullptr ? nullptr : static_cast<std::byte*>(region.data) + offset;
  return {.data = data, .dtype = dtype, .rows = rows, .cols = cols, .row_stride = row_stride, .device = device};
}

std::size_t TensorPlace::bytes() const {
  if (!used || rows == 0 || cols == 0) return 0;
  return static_cast<std::size_t>(((rows - 1) * row_stride + cols) * size_of(dtype));
}

std::size_t LinearSavedMemory::bytes_of_parts() const {
  std::size_t sum = 0;
  for (const TensorPlace& part : parts()) sum += part.bytes();
  return sum;
}

}  // namespace ingot
