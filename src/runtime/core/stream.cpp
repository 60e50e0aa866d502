#include "ingot/runtime/core/stream.h"

#include <fmt/format.h>

#include "ingot/runtime/util/error.h"

namespace ingot {

void CapturedScratch::set(Stream& stream, CapturedScratch* scratch) { stream.captured_into_ = scratch; }

Stream::Stream(DeviceApi& device_api) : device_api_(&device_api), handle_(device_api.create_stream()), owned_(true) {}

Stream::Stream(DeviceApi& device_api, CUstream_st* handle) : device_api_(&device_api), handle_(handle), owned_(false) {}

Stream::Stream(DeviceApi& device_api, CUstream_st* handle, StreamAllocator& allocator)
    : device_api_(&device_api), handle_(handle), owned_(false), allocator_(&allocator) {}

// The scratch memory is released after the stream, because release() waits for the device, while destroying a stream
// does not stop its work.
Stream::~Stream() {
  if (captured_into_ != nullptr) captured_into_->leave(*this);
  device_api_->destroy_fence(fence_);
  if (owned_) device_api_->destroy_stream(handle_);
}

void Stream::wait_for(const Stream& other) {
  check_stream(other, *device_api_);
  if (fence_ == nullptr) fence_ = device_api_->create_fence();
  device_api_->wait(*this, other, fence_);
  if (captured_into_ == nullptr && other.captured_into_ != nullptr) other.captured_into_->join(*this);
}

void* Stream::scratch(std::size_t bytes) {
  if (captured_into_ != nullptr) return captured_into_->scratch(*this, bytes);
  if (allocator_ == nullptr) {
    scratch_.reserve(*device_api_, bytes, *this);
    return scratch_.data();
  }
  if (scratch_block_.bytes() < bytes) scratch_block_ = StreamBlock(*allocator_, handle_, bytes);
  return scratch_block_.data();
}

void* Stream::zeros(std::size_t bytes) {
  if (captured_into_ != nullptr) return captured_into_->zeros(*this, bytes);
  const std::size_t before = allocator_ == nullptr ? zeros_.bytes() : zeros_block_.bytes();
  if (allocator_ == nullptr) {
    zeros_.reserve(*device_api_, bytes, *this);
  } else if (before < bytes) {
    // A block of the allocator would be cleared in every replay.
    if (void* const given = device_api_->zeros_of_capture(*this, bytes)) return given;
    zeros_block_ = StreamBlock(*allocator_, handle_, bytes);
  }
  void* const data = allocator_ == nullptr ? zeros_.data() : zeros_block_.data();
  const std::size_t now = allocator_ == nullptr ? zeros_.bytes() : zeros_block_.bytes();
  if (now != before) {
    zeros_hold_ = false;
    zeros_cleared_in_ = 0;
  }
  if (!zeros_hold_) clear_zeros(data, now);
  return data;
}

// A capture of the caller's only records it: that serves the rest of this capture, and nothing else.
void Stream::clear_zeros(void* data, std::size_t bytes) {
  const std::uint64_t capture = device_api_->capture_number(*this);
  if (capture != 0 && capture == zeros_cleared_in_) return;
  device_api_->fill_zero(data, bytes, *this);
  zeros_hold_ = capture == 0;
  zeros_cleared_in_ = capture;
}

void Stream::spoil_zeros() noexcept {
  try {
    if (captured_into_ != nullptr) return captured_into_->clear_zeros(*this);
    if (device_api_->capture_number(*this) != 0) {
      if (allocator_ != nullptr) device_api_->spoil_zeros_of_capture(*this);
      void* const data = allocator_ == nullptr ? zeros_.data() : zeros_block_.data();
      if (data != nullptr) {
        device_api_->fill_zero(data, allocator_ == nullptr ? zeros_.bytes() : zeros_block_.bytes(), *this);
      }
      return;
    }
  } catch (const Error&) {  // a capture that records no more is broken, and never replayed
  }
  zeros_hold_ = false;
  zeros_cleared_in_ = 0;
}

StreamAllocator& Stream::needed_allocator() const {
  if (allocator_ != nullptr) return *allocator_;
  throw Error(ErrorCode::invalid_argument, "stream",
              "has no allocator to take memory from; make it with a StreamAllocator, or give the call memory");
}

StreamBlock Stream::call_scratch(std::size_t bytes) {
  StreamAllocator& allocator = needed_allocator();
  if (captured_into_ != nullptr) return StreamBlock::borrowed(captured_into_->call_scratch(*this, bytes), bytes);
  return {allocator, handle_, bytes};
}

StreamBlock Stream::kept(std::size_t bytes) {
  StreamAllocator& allocator = needed_allocator();
  if (captured_into_ != nullptr) return StreamBlock::borrowed(captured_into_->kept(*this, bytes), bytes);
  return {allocator, handle_, bytes};
}

void check_stream(const Stream& stream, const DeviceApi& device_api) {
  if (&stream.device_api() == &device_api) return;
  throw Error(ErrorCode::invalid_argument, "stream",
              fmt::format("belongs to another Context's backend (on {}), not to this one (on {}); make a Stream with "
                          "this backend",
                          print(stream.device_api().device()), print(device_api.device())));
}

namespace {

// An address that only this thread has.
const void* this_thread() {
  thread_local const char mark = 0;
  return &mark;
}

}  // namespace

StreamUse::StreamUse(Stream& stream) noexcept {
  const void* user = nullptr;
  if (stream.user_.compare_exchange_strong(user, this_thread(), std::memory_order_acquire)) {
    stream_ = &stream;
  } else {
    refused_ = user != this_thread();
  }
}

StreamUse::~StreamUse() {
  if (stream_ != nullptr) stream_->user_.store(nullptr, std::memory_order_release);
}

}  // namespace ingot
