#include "ingot/runtime/core/tensor.h"

#include <fmt/format.h>

#include <algorithm>

#include "ingot/runtime/util/error.h"

namespace ingot {
namespace {

// More than any machine's memory holds, and so little that sums of sizes and multiples of tiles stay below 2^63; an
// empty matrix may have such a size, too.
constexpr std::int64_t kLargestSize = std::int64_t{1} << 48;

}  // namespace

std::string print(Device device) {
  return device.type == DeviceType::cpu ? "cpu" : fmt::format("cuda:{}", device.index);
}

Tensor matrix(void* data, Dtype dtype, std::int64_t rows, std::int64_t cols, Device device) {
  return {.data = data, .dtype = dtype, .rows = rows, .cols = cols, .row_stride = cols, .device = device};
}

Tensor vector(void* data, Dtype dtype, std::int64_t n, Device device) { return matrix(data, dtype, 1, n, device); }

std::string describe(const Tensor& tensor) {
  const std::string stride = tensor.row_stride == tensor.cols ? "" : fmt::format(", row stride {}", tensor.row_stride);
  return fmt::format("{}[{}, {}] on {}{}", name(tensor.dtype), tensor.rows, tensor.cols, print(tensor.device), stride);
}

std::size_t byte_span(const Tensor& tensor, const char* what) {
  if (tensor.rows < 0 || tensor.cols < 0 || tensor.row_stride < 0) {
    throw Error(ErrorCode::invalid_argument, what,
                fmt::format("is {}; sizes and strides must not be negative", describe(tensor)));
  }
  if (std::max({tensor.rows, tensor.cols, tensor.row_stride}) > kLargestSize) {
    throw Error(ErrorCode::invalid_argument, what,
                fmt::format("is {}; no size or stride may be larger than {} (2^48)", describe(tensor), kLargestSize));
  }
  if (tensor.empty()) return 0;
  std::int64_t elements = 0;
  std::int64_t bytes = 0;
  if (__builtin_mul_overflow(tensor.rows - 1, tensor.row_stride, &elements) ||
      __builtin_add_overflow(elements, tensor.cols, &elements) ||
      __builtin_mul_overflow(elements, std::int64_t{size_of(tensor.dtype)}, &bytes)) {
    throw Error(
        ErrorCode::invalid_argument, what,
        fmt::format("is {}; its bytes do not fit in 64 bits: check the sizes and the row stride", describe(tensor)));
  }
  return static_cast<std::size_t>(row_bytes(tensor.dtype, elements));
}

}  // namespace ingot
