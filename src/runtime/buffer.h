// Device memory with an owner.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "ingot/runtime/backend.h"
#include "ingot/runtime/tensor.h"

namespace ingot {

// Move-only; released through the backend it came from, which must outlive it.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Backend& backend, std::size_t bytes);
  Buffer(Buffer&& other) noexcept
      : memory_(std::move(other.memory_)),
        bytes_(std::exchange(other.bytes_, 0)),
        retired_(std::move(other.retired_)) {}
  Buffer& operator=(Buffer&& other) noexcept {
    memory_ = std::move(other.memory_);
    bytes_ = std::exchange(other.bytes_, 0);
    retired_ = std::move(other.retired_);
    return *this;
  }

  void* data() const { return memory_.get(); }
  std::size_t bytes() const { return bytes_; }

  // Makes room for at least `bytes`; the old content is lost if it grows. Where there is room, this is a comparison: it
  // is on the path of every launch, and the driver is not asked whether the stream is capturing. So any memory that was
  // used may be in a graph, and it stays, beside its larger successors, as long as this object; it grows by at least
  // half, which bounds what stays behind. Throws Error{invalid_argument} where the stream is capturing and room would
  // have to be allocated ("run the step once before capturing it"). An error changes nothing.
  void reserve(Backend& backend, std::size_t bytes, const Stream& stream);

 private:
  static Buffer larger(Backend& backend, std::size_t needed, std::size_t wanted);

  struct Release {
    Backend* backend;
    void operator()(void* data) const noexcept { backend->release(data); }
  };
  std::unique_ptr<void, Release> memory_{nullptr, Release{nullptr}};
  std::size_t bytes_ = 0;
  std::vector<std::unique_ptr<void, Release>> retired_;
};

// A matrix that owns its memory: contiguous, unless resize() is given a row stride.
class OwnedTensor {
 public:
  OwnedTensor() = default;
  OwnedTensor(Backend& backend, Dtype dtype, std::int64_t rows, std::int64_t cols);
  OwnedTensor(OwnedTensor&& other) noexcept
      : buffer_(std::move(other.buffer_)), view_(std::exchange(other.view_, Tensor{})) {}
  OwnedTensor& operator=(OwnedTensor&& other) noexcept {
    buffer_ = std::move(other.buffer_);
    view_ = std::exchange(other.view_, Tensor{});
    return *this;
  }

  const Tensor& view() const { return view_; }
  operator const Tensor&() const { return view_; }  // NOLINT(google-explicit-constructor): a tensor is its view

  // Reshapes in place, growing the memory if need be (Buffer::reserve's rules). row_stride: elements, 0 for cols.
  void resize(Backend& backend, Dtype dtype, std::int64_t rows, std::int64_t cols, const Stream& stream,
              std::int64_t row_stride = 0);

 private:
  Buffer buffer_;
  Tensor view_;
};

}  // namespace ingot
