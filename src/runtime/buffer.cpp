#include "ingot/runtime/buffer.h"

#include <fmt/format.h>

#include "ingot/runtime/error.h"
#include "ingot/runtime/stream.h"

namespace ingot {

Buffer::Buffer(Backend& backend, std::size_t bytes)
    : memory_(backend.allocate(bytes), Release{&backend}), bytes_(bytes) {}

void Buffer::reserve(Backend& backend, std::size_t bytes, const Stream& stream) {
  const bool capturing = backend.capturing(stream);
  if (bytes <= bytes_) {
    captured_ = captured_ || capturing;
    return;
  }
  if (capturing) {
    throw Error(
        ErrorCode::invalid_argument, "stream",
        fmt::format("is capturing a graph, and this step needs {} bytes where {} are there; nothing is allocated "
                    "during capture: run the step once before capturing it",
                    bytes, bytes_));
  }
  if (captured_) {
    retired_.push_back(std::move(memory_));
  }
  // Otherwise the old memory goes first: the two together might not fit.
  memory_ = {nullptr, Release{nullptr}};
  bytes_ = 0;
  captured_ = false;
  memory_ = {backend.allocate(bytes), Release{&backend}};
  bytes_ = bytes;
}

namespace {

std::size_t bytes_of(Dtype dtype, std::int64_t rows, std::int64_t cols) {
  return byte_span(matrix(nullptr, dtype, rows, cols, Device{}), "tensor");
}

}  // namespace

OwnedTensor::OwnedTensor(Backend& backend, Dtype dtype, std::int64_t rows, std::int64_t cols)
    : buffer_(backend, bytes_of(dtype, rows, cols)),
      view_(matrix(buffer_.data(), dtype, rows, cols, backend.device())) {}

void OwnedTensor::resize(Backend& backend, Dtype dtype, std::int64_t rows, std::int64_t cols, const Stream& stream) {
  const std::size_t bytes = bytes_of(dtype, rows, cols);
  if (bytes > buffer_.bytes() && !backend.capturing(stream)) view_ = Tensor{};  // no view of memory that is gone
  buffer_.reserve(backend, bytes, stream);
  view_ = matrix(buffer_.data(), dtype, rows, cols, backend.device());
}

}  // namespace ingot
