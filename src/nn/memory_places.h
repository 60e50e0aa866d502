// Lays out the memory of a module of several parts: gives each tensor and each part's own region the next place, at a
// multiple of kLinearAlignment.
#pragma once

#include "ingot/nn/linear_memory.h"

namespace ingot {

class MemoryPlaces {
 public:
  void values(TensorPlace& place, Dtype dtype, std::int64_t rows, std::int64_t cols) {
    place = {.dtype = dtype, .rows = rows, .cols = cols, .row_stride = cols, .offset = bytes_, .used = true};
    region(static_cast<std::size_t>(rows * cols * size_of(dtype)));
  }
  void floats(TensorPlace& place, std::int64_t count) { values(place, Dtype::f32, 1, count); }
  // Returns where it begins.
  std::size_t region(std::size_t bytes) {
    const std::size_t begin = bytes_;
    bytes_ += (bytes + kLinearAlignment - 1) / kLinearAlignment * kLinearAlignment;
    return begin;
  }
  std::size_t bytes() const { return bytes_; }

 private:
  std::size_t bytes_ = 0;
};

// A part's own region within its module's. A null region stays null.
inline MemoryRegion part_of(const MemoryRegion& region, std::size_t begin, std::size_t bytes) {
  if (region.data == nullptr) return {};
  return {static_cast<std::byte*>(region.data) + begin, bytes};
}

}  // namespace ingot
