#include "ingot/runtime/stream.h"

#include "ingot/runtime/check.h"
#include "ingot/runtime/cuda/graph_scratch.h"

namespace ingot {

Stream::Stream(Backend& backend) : backend_(&backend), handle_(backend.create_stream()), owned_(true) {}

Stream::Stream(Backend& backend, CUstream_st* handle) : backend_(&backend), handle_(handle), owned_(false) {}

// The scratch memory is released after the stream, because release() waits for the device, while destroying a stream
// does not stop its work.
Stream::~Stream() {
  if (captured_into_ != nullptr) captured_into_->leave(*this);
  backend_->destroy_fence(fence_);
  if (owned_) backend_->destroy_stream(handle_);
}

void Stream::wait_for(const Stream& other) {
  check_stream(other, *backend_);
  if (fence_ == nullptr) fence_ = backend_->create_fence();
  backend_->wait(*this, other, fence_);
  if (captured_into_ == nullptr && other.captured_into_ != nullptr) other.captured_into_->join(*this);
}

void* Stream::scratch(std::size_t bytes) {
  if (captured_into_ != nullptr) return captured_into_->scratch(*this, bytes);
  scratch_.reserve(*backend_, bytes, *this);
  return scratch_.data();
}

void* Stream::zeros(std::size_t bytes) {
  if (captured_into_ != nullptr) return captured_into_->zeros(*this, bytes);
  const std::size_t before = zeros_.bytes();
  zeros_.reserve(*backend_, bytes, *this);
  if (zeros_.bytes() != before) zeros_hold_ = false;
  if (!zeros_hold_) backend_->fill_zero(zeros_.data(), zeros_.bytes(), *this);
  zeros_hold_ = true;
  return zeros_.data();
}

}  // namespace ingot
