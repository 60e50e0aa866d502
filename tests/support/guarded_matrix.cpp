#include "support/guarded_matrix.h"

namespace ingot::test {

GuardedMatrix::GuardedMatrix(Dtype dtype, std::int64_t rows, std::int64_t cols, std::int64_t padding,
                             std::int64_t offset)
    : dtype_(dtype), rows_(rows), cols_(cols), stride_(cols + padding), offset_(offset) {
  const auto elements = static_cast<std::size_t>(rows * stride_ + offset);
  bytes_.assign(elements * element_size() + 2 * kGuard, kPoison);
}

Tensor GuardedMatrix::view(void* base, Device device) const {
  if (bytes_.empty()) return {};
  return {.data = static_cast<std::byte*>(base) + start(),
          .dtype = dtype_,
          .rows = rows_,
          .cols = cols_,
          .row_stride = stride_,
          .device = device};
}

std::string GuardedMatrix::damage() const {
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

}  // namespace ingot::test
