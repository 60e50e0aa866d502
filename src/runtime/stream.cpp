#include "ingot/runtime/stream.h"

namespace ingot {

Stream::Stream(Backend& backend) : backend_(&backend), handle_(backend.create_stream()), owned_(true) {}

Stream::Stream(Backend& backend, CUstream_st* handle) : backend_(&backend), handle_(handle), owned_(false) {}

// The scratch is released after the stream: release() waits for the device, destroying a stream does not stop its work.
Stream::~Stream() {
  if (owned_) backend_->destroy_stream(handle_);
}

void* Stream::scratch(std::size_t bytes) {
  scratch_.reserve(*backend_, bytes, *this);
  return scratch_.data();
}

void* Stream::zeros(std::size_t bytes) {
  const std::size_t before = zeros_.bytes();
  zeros_.reserve(*backend_, bytes, *this);
  if (zeros_.bytes() != before) zeros_hold_ = false;
  if (!zeros_hold_) backend_->fill_zero(zeros_.data(), zeros_.bytes(), *this);
  zeros_hold_ = true;
  return zeros_.data();
}

}  // namespace ingot
