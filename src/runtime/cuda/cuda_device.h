// One GPU, on the CUDA driver API: memory, streams, fences and timing events are the driver's.
//
// Memory comes from cuMemAlloc rather than a stream-ordered pool: it outlives streams, may be used on all of them, and
// is allocated in the first step only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "ingot/runtime/core/device_api.h"
#include "ingot/runtime/core/stream.h"
#include "ingot/runtime/cuda/capture_zeros.h"
#include "ingot/runtime/cuda/driver.h"

namespace ingot {

class CudaDevice final : public DeviceApi {
 public:
  // The driver must outlive it.
  CudaDevice(const Driver& driver, int index);

  void* allocate(std::size_t bytes) override;
  void release(void* data) noexcept override;
  void copy_from_host(void* device_data, const void* host_data, std::size_t bytes, Stream& stream) override;
  void copy_to_host(void* host_data, const void* device_data, std::size_t bytes, Stream& stream) override;
  void copy(void* to, const void* from, std::size_t bytes, Stream& stream) override;
  void fill_zero(void* device_data, std::size_t bytes, Stream& stream) override;
  void fill(float* device_data, float value, std::size_t count, Stream& stream) override;
  bool is_allocated(const void* device_data, std::size_t bytes) const override;
  CUstream_st* create_stream() override;
  void destroy_stream(CUstream_st* stream) noexcept override;
  void synchronize(Stream& stream) override;
  void in_context(const Stream& stream, const std::function<void()>& call) const override;
  void* create_fence() override;
  void destroy_fence(void* fence) noexcept override;
  void wait(const Stream& stream, const Stream& other, void* fence) override;
  bool capturing(const Stream& stream) const override;
  std::uint64_t capture_number(const Stream& stream) const override;
  void* zeros_of_capture(const Stream& stream, std::size_t bytes) override;
  void spoil_zeros_of_capture(const Stream& stream) noexcept override;
  std::unique_ptr<CapturedWork> capture(Stream& stream, const std::function<void()>& work) override;
  void* create_timing_event() override;
  void destroy_timing_event(void* event) noexcept override;
  void record_timing_event(void* event, const Stream& stream) override;
  double microseconds_between(void* begin, void* end) override;

  const Driver& driver() const { return *driver_; }

  // Every call on a stream starts here: checks that the stream is this device's, and makes its context, which may be
  // the caller's, current on this thread as long as the result lives. The thread may never have used CUDA before.
  [[nodiscard]] CurrentContext begin(const Stream& stream) const {
    check_stream(stream, *this);
    return make_current(stream);
  }

 private:
  const Driver::Api& api() const { return driver_->api(); }
  CurrentContext make_current() const { return {*driver_, device().index}; }
  CurrentContext make_current(const Stream& stream) const { return {*driver_, device().index, stream.handle()}; }
  void wait_by(CUevent event, const Stream& stream, const Stream& other) const;
  void wait_in_callers(const Stream& stream, const Stream& other) const;
  bool byte_is_allocated(CUdeviceptr byte) const;
  void* create_event(unsigned flags) const;
  void destroy_event(void* event) const noexcept;
  void check_not_capturing(const char* operation, const Stream& stream) const;
  template <class Call>
  CUresult outside_of_captures(const Call& call) const;
  [[noreturn]] void throw_out_of_memory(std::size_t bytes) const;

  const Driver* driver_;
  CaptureZeros capture_zeros_;
};

}  // namespace ingot
