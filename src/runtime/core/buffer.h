// Device memory that its owner releases: Buffer is bytes, and a matrix type builds on it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "ingot/api.h"
#include "ingot/runtime/core/device_api.h"
#include "ingot/runtime/core/tensor.h"

namespace ingot {

// Move-only. Releases its memory on the device that allocated it, which must outlive it.
class INGOT_API Buffer {
 public:
  Buffer() = default;
  Buffer(DeviceApi& device_api, std::size_t bytes);
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

  // Grows to at least `bytes`; growing loses the old content. If there is room already, this costs one comparison: it
  // is on the path of every launch, and does not ask the driver whether the stream is capturing. A captured graph may
  // therefore use any of this memory, so outgrown blocks are kept as long as this object lives; growing by at least
  // half bounds how much that is. Throws Error{invalid_argument} if it would have to allocate while the stream is
  // capturing ("run the step once before capturing it"). An error changes nothing.
  void reserve(DeviceApi& device_api, std::size_t bytes, const Stream& stream);

 private:
  static Buffer larger(DeviceApi& device_api, std::size_t needed, std::size_t wanted);

  struct Release {
    DeviceApi* device_api;
    void operator()(void* data) const noexcept { device_api->release(data); }
  };
  std::unique_ptr<void, Release> memory_{nullptr, Release{nullptr}};
  std::size_t bytes_ = 0;
  std::vector<std::unique_ptr<void, Release>> retired_;
};

// A matrix that owns its memory: contiguous, unless resize() is given a row stride.
class INGOT_API OwnedTensor {
 public:
  OwnedTensor() = default;
  OwnedTensor(DeviceApi& device_api, Dtype dtype, std::int64_t rows, std::int64_t cols);
  OwnedTensor(OwnedTensor&& other) noexcept
      : buffer_(std::move(other.buffer_)), view_(std::exchange(other.view_, Tensor{})) {}
  OwnedTensor& operator=(OwnedTensor&& other) noexcept {
    buffer_ = std::move(other.buffer_);
    view_ = std::exchange(other.view_, Tensor{});
    return *this;
  }

  const Tensor& view() const { return view_; }
  operator const Tensor&() const { return view_; }  // NOLINT(google-explicit-constructor): a tensor is its view

  // Reshapes in place and grows the memory if necessary, by Buffer::reserve()'s rules. row_stride: in elements; 0 means
  // cols.
  void resize(DeviceApi& device_api, Dtype dtype, std::int64_t rows, std::int64_t cols, const Stream& stream,
              std::int64_t row_stride = 0);

 private:
  Buffer buffer_;
  Tensor view_;
};

}  // namespace ingot
