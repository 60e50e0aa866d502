#include "ingot/runtime/cpu/cpu_device.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>
#include <new>
#include <string>

#include "ingot/runtime/core/check.h"
#include "ingot/runtime/core/stream.h"
#include "ingot/runtime/util/error.h"

namespace ingot {
namespace {

constexpr std::align_val_t kAlignment{256};

class CpuDevice final : public DeviceApi {
 public:
  CpuDevice() : DeviceApi({DeviceType::cpu, 0}) {}

  void* allocate(std::size_t bytes) override {
    if (bytes == 0) return nullptr;
    void* const data = bytes <= static_cast<std::size_t>(std::numeric_limits<std::ptrdiff_t>::max())
                           ? ::operator new(bytes, kAlignment, std::nothrow)
                           : nullptr;
    if (data == nullptr) {
      throw Error(ErrorCode::out_of_memory, "cpu memory",
                  "no room for " + std::to_string(bytes) + " bytes; release tensors or use a smaller batch");
    }
    return data;
  }

  void release(void* data) noexcept override { ::operator delete(data, kAlignment); }

  void copy_from_host(void* device_data, const void* host_data, std::size_t bytes, Stream& stream) override {
    check_stream(stream, *this);
    check_pointers("copy_from_host", device_data, host_data, bytes);
    if (bytes != 0) std::memcpy(device_data, host_data, bytes);
  }

  void copy_to_host(void* host_data, const void* device_data, std::size_t bytes, Stream& stream) override {
    check_stream(stream, *this);
    check_pointers("copy_to_host", host_data, device_data, bytes);
    if (bytes != 0) std::memcpy(host_data, device_data, bytes);
  }

  void copy(void* to, const void* from, std::size_t bytes, Stream& stream) override {
    check_stream(stream, *this);
    check_pointers("copy", to, from, bytes);
    if (bytes != 0) std::memcpy(to, from, bytes);
  }

  void fill_zero(void* device_data, std::size_t bytes, Stream& stream) override {
    check_stream(stream, *this);
    check_pointers("fill_zero", device_data, device_data, bytes);
    if (bytes != 0) std::memset(device_data, 0, bytes);
  }

  void fill(float* device_data, float value, std::size_t count, Stream& stream) override {
    check_stream(stream, *this);
    check_pointers("fill", device_data, device_data, count * sizeof(float));
    std::fill_n(device_data, count, value);
  }

  void synchronize(Stream& /*stream*/) override {}
  void in_context(const Stream& stream, const std::function<void()>& call) const override {
    check_stream(stream, *this);
    call();
  }
  bool capturing(const Stream& /*stream*/) const override { return false; }
  bool is_allocated(const void* /*device_data*/, std::size_t /*bytes*/) const override { return true; }
  std::unique_ptr<CapturedWork> capture(Stream& stream, const std::function<void()>& /*work*/) override {
    check_stream(stream, *this);
    throw Error(ErrorCode::invalid_argument, "graph",
                "the CPU backend runs work at once, so there is nothing to capture; call the work again instead of "
                "replaying it, or make the context on a GPU");
  }
  CUstream_st* create_stream() override { return nullptr; }
  void destroy_stream(CUstream_st* /*stream*/) noexcept override {}

  void* create_fence() override { return nullptr; }
  void destroy_fence(void* /*fence*/) noexcept override {}
  void wait(const Stream& stream, const Stream& other, void* /*fence*/) override {
    check_stream(stream, *this);
    check_stream(other, *this);
  }

  void* create_timing_event() override { return new Clock::time_point; }
  void destroy_timing_event(void* event) noexcept override { delete static_cast<Clock::time_point*>(event); }
  void record_timing_event(void* event, const Stream& stream) override {
    check_stream(stream, *this);
    *static_cast<Clock::time_point*>(event) = Clock::now();
  }
  double microseconds_between(void* begin, void* end) override {
    return std::chrono::duration<double, std::micro>(*static_cast<Clock::time_point*>(end) -
                                                     *static_cast<Clock::time_point*>(begin))
        .count();
  }

 private:
  using Clock = std::chrono::steady_clock;
};

}  // namespace

std::unique_ptr<DeviceApi> make_cpu_device() { return std::make_unique<CpuDevice>(); }

}  // namespace ingot
