// A device that only hands out memory and counts it. A test can tell it that its streams are capturing.
#pragma once

#include <cstdlib>
#include <cstring>
#include <map>

#include "ingot/runtime/core/device_api.h"
#include "ingot/runtime/util/error.h"

namespace ingot::test {

class FakeDevice final : public DeviceApi {
 public:
  bool is_capturing = false;
  bool fill_fails = false;
  std::size_t largest = ~std::size_t{0};  // a larger allocation fails
  int allocations = 0;
  mutable int capture_questions = 0;
  int streams = 0;
  std::map<void*, std::size_t> live{};  // the current allocations

  explicit FakeDevice(Device device = {DeviceType::cuda, 2}) : DeviceApi(device) {}

  void* allocate(std::size_t bytes) override;
  void release(void* data) noexcept override;
  void copy_from_host(void* to, const void* from, std::size_t bytes, Stream&) override;
  void copy_to_host(void* to, const void* from, std::size_t bytes, Stream&) override;
  void copy(void* to, const void* from, std::size_t bytes, Stream&) override;
  void fill_zero(void* data, std::size_t bytes, Stream&) override;
  void fill(float* data, float value, std::size_t count, Stream&) override;
  bool is_allocated(const void*, std::size_t) const override { return true; }
  // A handle is just a count of the streams made; nothing dereferences it.
  CUstream_st* create_stream() override;
  void destroy_stream(CUstream_st*) noexcept override { --streams; }
  void synchronize(Stream&) override {}
  void in_context(const Stream&, const std::function<void()>& call) const override { call(); }
  void* create_fence() override { return nullptr; }
  void destroy_fence(void* /*fence*/) noexcept override {}
  void wait(const Stream& /*stream*/, const Stream& /*other*/, void* /*fence*/) override {}
  bool capturing(const Stream&) const override {
    ++capture_questions;
    return is_capturing;
  }
  std::unique_ptr<CapturedWork> capture(Stream&, const std::function<void()>&) override { return nullptr; }
  void* create_timing_event() override { return nullptr; }
  void destroy_timing_event(void*) noexcept override {}
  void record_timing_event(void*, const Stream&) override {}
  double microseconds_between(void*, void*) override { return 0; }
};

}  // namespace ingot::test
