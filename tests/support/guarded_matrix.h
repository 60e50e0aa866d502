// A matrix in host memory between guard bytes: it detects what an operation writes outside its elements.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "ingot/runtime/core/tensor.h"
#include "support/reference_formats.h"

namespace ingot::test {

class GuardedMatrix {
 public:
  static constexpr std::size_t kGuard = 256;  // bytes before and after; a multiple of the allocation's alignment
  static constexpr std::byte kPoison{0xa5};

  GuardedMatrix() = default;
  // `padding`: elements after each row; `offset`: elements before the first.
  GuardedMatrix(Dtype dtype, std::int64_t rows, std::int64_t cols, std::int64_t padding = 0, std::int64_t offset = 0);

  Dtype dtype() const { return dtype_; }
  std::int64_t rows() const { return rows_; }
  std::int64_t cols() const { return cols_; }
  std::vector<std::byte>& bytes() { return bytes_; }
  const std::vector<std::byte>& bytes() const { return bytes_; }

  // The matrix within a copy of bytes() at `base`.
  Tensor view(void* base, Device device) const;

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
  std::string damage() const;

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
