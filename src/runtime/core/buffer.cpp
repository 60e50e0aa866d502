#include "ingot/runtime/core/buffer.h"

#include <fmt/format.h>

#include <algorithm>

#include "ingot/runtime/util/error.h"

namespace ingot {

Buffer::Buffer(DeviceApi& device_api, std::size_t bytes)
    : memory_(device_api.allocate(bytes), Release{&device_api}), bytes_(bytes) {}

void Buffer::reserve(DeviceApi& device_api, std::size_t bytes, const Stream& stream) {
  if (bytes <= bytes_) return;
  if (device_api.capturing(stream)) {
    throw Error(
        ErrorCode::invalid_argument, "stream",
        fmt::format(
            "is capturing a graph, and this step needs {} bytes, but only {} are allocated; nothing is allocated "
            "during capture: run the step once before capturing it",
            bytes, bytes_));
  }
  Buffer grown = larger(device_api, bytes, bytes_ + bytes_ / 2);
  if (memory_ != nullptr) retired_.push_back(std::move(memory_));
  memory_ = std::move(grown.memory_);
  bytes_ = grown.bytes_;
}

// If the device has no room for more than is needed, takes only what is needed.
Buffer Buffer::larger(DeviceApi& device_api, std::size_t needed, std::size_t wanted) {
  if (wanted <= needed) return {device_api, needed};
  try {
    return {device_api, wanted};
  } catch (const Error& error) {
    if (error.code() != ErrorCode::out_of_memory) throw;
  }
  return {device_api, needed};
}

namespace {

std::size_t bytes_of(Dtype dtype, std::int64_t rows, std::int64_t cols) {
  return byte_span(matrix(nullptr, dtype, rows, cols, Device{}), "tensor");
}

}  // namespace

OwnedTensor::OwnedTensor(DeviceApi& device_api, Dtype dtype, std::int64_t rows, std::int64_t cols)
    : buffer_(device_api, bytes_of(dtype, rows, cols)),
      view_(matrix(buffer_.data(), dtype, rows, cols, device_api.device())) {}

void OwnedTensor::resize(DeviceApi& device_api, Dtype dtype, std::int64_t rows, std::int64_t cols, const Stream& stream,
                         std::int64_t row_stride) {
  const std::int64_t stride = std::max(row_stride, cols);
  buffer_.reserve(device_api, bytes_of(dtype, rows, stride), stream);
  view_ = matrix(buffer_.data(), dtype, rows, cols, device_api.device());
  view_.row_stride = stride;
}

}  // namespace ingot
