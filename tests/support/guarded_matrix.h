// A matrix in host memory between guard bytes: it detects what an operation writes outside its elements.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "ingot/runtime/tensor.h"
#include "support/reference_formats.h"

namespace ingot::test {

class GuardedMatrix {
 public:
  static constexpr std::size_t kGuard = 256;  // bytes before and after; a multiple of the allocation's alignment
  static constexpr std::byte kPoison{0xa5};

  GuardedMatrix() = default;
  // `padding`: elements after each row; `offset`: elements before the first.
  GuardedMatrix(Dtype dtype, std::int64_t rows, std::int64_t cols, std::int64_t padding = 0, std::int64_t offset = 0)
      : dtype_(dtype), rows_(rows), cols_(cols), stride_(cols + padding), offset_(offset) {
    const auto elements = static_cast<std::size_t>(rows * stride_ + offset);
    bytes_.assign(elements * element_size() + 2 * kGuard, kPoison);
  }

  Dtype dtype() const { return dtype_; }
  std::int64_t rows() const { return rows_; }
  std::int64_t cols() const { return cols_; }
  std::vector<std::byte>& bytes() { return bytes_; }
  const std::vector<std::byte>& bytes() const { return bytes_; }

  // The matrix within a copy of bytes() at `base`.
  Tensor view(void* base, Device device) const {
    if (bytes_.empty()) return {};
    return {.data = static_cast<std::byte*>(base) + start(),
            .dtype = dtype_,
            .rows = rows_,
            .cols = cols_,
            .row_stride = stride_,
            .device = device};
  }

  const std::byte* element(std::int64_t r, std::int64_t c) const { return bytes_.data() + position(r, c); }
  std::byte* element(std::int64_t r, std::int64_t c) { return bytes_.data() + position(r, c); }

  std::uint32_t bits(std::int64_t r, std::int64_t c) const {
    std::uint32_t value = 0;
    std::memcpy(&value, element(r, c), element_size());  // little-endian, as CUDA's hosts are
    return value;
  }
  void set_bits(std::int64_t r, std::int64_t c, std::uint32_t value) {
    std::memcpy(element(r, c), &value, element_size());
  }
  double value(std::int64_t r, std::int64_t c) const { return decode_reference(dtype_, bits(r, c)); }

  std::size_t row_bytes() const { return static_cast<std::size_t>(cols_) * element_size(); }

  // Empty, or the position of the first byte that was written outside the elements.
  std::string damage() const {
    if (bytes_.empty()) return {};
    const auto untouched = [&](std::size_t begin, std::size_t end) -> std::string {
      for (std::size_t i = begin; i < end; ++i) {
        if (bytes_[i] != kPoison) {
          return "byte " + std::to_string(static_cast<std::int64_t>(i) - static_cast<std::int64_t>(start())) +
                 " from the first element is outside of the matrix and was written";
        }
      }
      return {};
    };
    std::string found = untouched(0, start());
    for (std::int64_t r = 0; r < rows_ && found.empty() && stride_ != cols_; ++r) {
      found =
          untouched(position(r, 0) + row_bytes(), position(r, 0) + static_cast<std::size_t>(stride_) * element_size());
    }
    if (found.empty())
      found = untouched(start() + static_cast<std::size_t>(rows_ * stride_) * element_size(), bytes_.size());
    return found;
  }

 private:
  std::size_t element_size() const { return static_cast<std::size_t>(size_of(dtype_)); }
  std::size_t start() const { return kGuard + static_cast<std::size_t>(offset_) * element_size(); }
  std::size_t position(std::int64_t r, std::int64_t c) const {
    return start() + static_cast<std::size_t>(r * stride_ + c) * element_size();
  }

  Dtype dtype_ = Dtype::f32;
  std::int64_t rows_ = 0, cols_ = 0, stride_ = 0, offset_ = 0;
  std::vector<std::byte> bytes_;
};

}  // namespace ingot::test
