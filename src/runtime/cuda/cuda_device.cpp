#include "ingot/runtime/cuda/cuda_device.h"

#include <string>

#include "ingot/runtime/core/check.h"
#include "ingot/runtime/cuda/captured_graph.h"
#include "ingot/runtime/util/error.h"

namespace ingot {
namespace {

CUdeviceptr address(const void* data) { return reinterpret_cast<CUdeviceptr>(data); }

}  // namespace

CudaDevice::CudaDevice(const Driver& driver, int index)
    : DeviceApi({DeviceType::cuda, index}), driver_(&driver), capture_zeros_(driver, index) {}

// Memory is no part of what a stream captures, so a capture, of this thread or in the mode global of another, need
// not forbid these calls or be broken off by them.
template <class Call>
CUresult CudaDevice::outside_of_captures(const Call& call) const {
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  driver_->check(api().cuThreadExchangeStreamCaptureMode(&mode), "cuThreadExchangeStreamCaptureMode");
  const CUresult result = call();
  driver_->check(api().cuThreadExchangeStreamCaptureMode(&mode), "cuThreadExchangeStreamCaptureMode");
  return result;
}

void* CudaDevice::allocate(std::size_t bytes) {
  if (bytes == 0) return nullptr;
  const CurrentContext current = make_current();
  CUdeviceptr data = 0;
  const CUresult result = outside_of_captures([&] { return api().cuMemAlloc(&data, bytes); });
  if (result == CUDA_ERROR_OUT_OF_MEMORY) throw_out_of_memory(bytes);
  driver_->check(result, "cuMemAlloc");
  return reinterpret_cast<void*>(data);
}

// cuMemFree waits for the work that may use the memory. Nothing can be done about a failure here: a broken context
// reports it to the next call that can throw.
void CudaDevice::release(void* data) noexcept {
  if (data == nullptr) return;
  try {
    const CurrentContext current = make_current();
    static_cast<void>(outside_of_captures([&] { return api().cuMemFree(address(data)); }));
  } catch (const Error&) {
    return;
  }
}

void CudaDevice::copy_from_host(void* device_data, const void* host_data, std::size_t bytes, Stream& stream) {
  check_pointers("copy_from_host", device_data, host_data, bytes);
  const CurrentContext current = begin(stream);
  if (bytes == 0) return;
  check_not_capturing("copy_from_host", stream);
  driver_->check(api().cuMemcpyHtoDAsync(address(device_data), host_data, bytes, stream.handle()), "cuMemcpyHtoDAsync");
  synchronize(stream);
}

void CudaDevice::copy_to_host(void* host_data, const void* device_data, std::size_t bytes, Stream& stream) {
  check_pointers("copy_to_host", host_data, device_data, bytes);
  const CurrentContext current = begin(stream);
  if (bytes == 0) return;
  check_not_capturing("copy_to_host", stream);
  driver_->check(api().cuMemcpyDtoHAsync(host_data, address(device_data), bytes, stream.handle()), "cuMemcpyDtoHAsync");
  synchronize(stream);
}

void CudaDevice::copy(void* to, const void* from, std::size_t bytes, Stream& stream) {
  check_pointers("copy", to, from, bytes);
  const CurrentContext current = begin(stream);
  if (bytes == 0) return;
  driver_->check(api().cuMemcpyDtoDAsync(address(to), address(from), bytes, stream.handle()), "cuMemcpyDtoDAsync");
}

void CudaDevice::fill_zero(void* device_data, std::size_t bytes, Stream& stream) {
  check_pointers("fill_zero", device_data, device_data, bytes);
  const CurrentContext current = begin(stream);
  if (bytes != 0) driver_->fill_zero(device_data, bytes, stream.handle());
}

void CudaDevice::fill(float* device_data, float value, std::size_t count, Stream& stream) {
  check_pointers("fill", device_data, device_data, count * sizeof(float));
  const CurrentContext current = begin(stream);
  if (count != 0) driver_->fill(device_data, value, count, stream.handle());
}

void CudaDevice::synchronize(Stream& stream) {
  const CurrentContext current = begin(stream);
  driver_->check(outside_of_captures([&] { return api().cuStreamSynchronize(stream.handle()); }),
                 "cuStreamSynchronize");
}

void CudaDevice::in_context(const Stream& stream, const std::function<void()>& call) const {
  const CurrentContext current = begin(stream);
  call();
}

bool CudaDevice::capturing(const Stream& stream) const {
  const CurrentContext current = make_current(stream);
  return driver_->capturing(stream.handle());
}

std::uint64_t CudaDevice::capture_number(const Stream& stream) const {
  const CurrentContext current = make_current(stream);
  return capture_zeros_.capture_number(stream.handle());
}

void* CudaDevice::zeros_of_capture(const Stream& stream, std::size_t bytes) {
  const CurrentContext current = make_current();
  return capture_zeros_.of(stream.handle(), bytes);
}

void CudaDevice::spoil_zeros_of_capture(const Stream& stream) noexcept {
  try {
    const CurrentContext current = make_current();
    capture_zeros_.spoil(stream.handle());
  } catch (const Error&) {
    return;
  }
}

bool CudaDevice::is_allocated(const void* device_data, std::size_t bytes) const {
  if (bytes == 0) return true;
  const CurrentContext current = make_current();
  return byte_is_allocated(address(device_data)) && byte_is_allocated(address(device_data) + bytes - 1);
}

std::unique_ptr<CapturedWork> CudaDevice::capture(Stream& stream, const std::function<void()>& work) {
  const CurrentContext current = begin(stream);
  return capture_graph(*driver_, device().index, stream, work);
}

CUstream_st* CudaDevice::create_stream() {
  const CurrentContext current = make_current();
  CUstream stream = nullptr;
  driver_->check(outside_of_captures([&] { return api().cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING); }),
                 "cuStreamCreate");
  return stream;
}

void CudaDevice::destroy_stream(CUstream_st* stream) noexcept {
  if (stream == nullptr) return;
  try {
    const CurrentContext current = make_current();
    static_cast<void>(api().cuStreamDestroy(stream));
  } catch (const Error&) {
    return;
  }
}

void* CudaDevice::create_fence() { return create_event(CU_EVENT_DISABLE_TIMING); }
void CudaDevice::destroy_fence(void* fence) noexcept { destroy_event(fence); }
void CudaDevice::wait(const Stream& stream, const Stream& other, void* fence) {
  check_stream(other, *this);
  check_stream(stream, *this);
  const CurrentContext current = make_current(other.handle() == nullptr ? other : stream);
  if (current.is_callers() && other.handle() == nullptr) return wait_in_callers(stream, other);
  wait_by(static_cast<CUevent>(fence), stream, other);
}

void* CudaDevice::create_timing_event() { return create_event(CU_EVENT_DEFAULT); }
void CudaDevice::destroy_timing_event(void* event) noexcept { destroy_event(event); }

void CudaDevice::record_timing_event(void* event, const Stream& stream) {
  const CurrentContext current = begin(stream);
  driver_->check(api().cuEventRecord(static_cast<CUevent>(event), stream.handle()), "cuEventRecord");
}

double CudaDevice::microseconds_between(void* begin, void* end) {
  const CurrentContext current = make_current();
  float milliseconds = 0;
  for (void* const event : {begin, end}) {
    driver_->check(api().cuEventSynchronize(static_cast<CUevent>(event)), "cuEventSynchronize");
  }
  driver_->check(api().cuEventElapsedTime(&milliseconds, static_cast<CUevent>(begin), static_cast<CUevent>(end)),
                 "cuEventElapsedTime");
  return 1e3 * static_cast<double>(milliseconds);
}

void CudaDevice::wait_by(CUevent event, const Stream& stream, const Stream& other) const {
  driver_->check(api().cuEventRecord(event, other.handle()), "cuEventRecord");
  const CUresult result = api().cuStreamWaitEvent(stream.handle(), event, CU_EVENT_WAIT_DEFAULT);
  if (result == CUDA_ERROR_STREAM_CAPTURE_ISOLATION || result == CUDA_ERROR_STREAM_CAPTURE_MERGE) {
    throw Error(ErrorCode::invalid_argument, "Stream::wait_for",
                "the stream is capturing a graph, and the other one takes no part in that capture; let the other wait "
                "for this one first, which makes it join");
  }
  driver_->check(result, "cuStreamWaitEvent");
}

// An event is recorded in the context that it was made in. The driver keeps it until it is no longer needed.
void CudaDevice::wait_in_callers(const Stream& stream, const Stream& other) const {
  CUevent event = nullptr;
  driver_->check(api().cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
  const std::unique_ptr<CUevent_st, decltype(api().cuEventDestroy)> destroyed(event, api().cuEventDestroy);
  wait_by(event, stream, other);
}

// The driver knows of each byte whether it is memory of any kind. Parts of one tensor may be separate allocations
// that were mapped side by side.
bool CudaDevice::byte_is_allocated(CUdeviceptr byte) const {
  CUmemorytype type{};
  const CUresult result = api().cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, byte);
  if (result == CUDA_ERROR_INVALID_VALUE) return false;
  driver_->check(result, "cuPointerGetAttribute");
  return true;
}

void* CudaDevice::create_event(unsigned flags) const {
  const CurrentContext current = make_current();
  CUevent event = nullptr;
  driver_->check(api().cuEventCreate(&event, flags), "cuEventCreate");
  return event;
}

void CudaDevice::destroy_event(void* event) const noexcept {
  if (event == nullptr) return;
  try {
    const CurrentContext current = make_current();
    static_cast<void>(api().cuEventDestroy(static_cast<CUevent>(event)));
  } catch (const Error&) {
    return;
  }
}

// The host side may be reused when a copy returns, so a copy waits; a graph would read that memory later instead.
void CudaDevice::check_not_capturing(const char* operation, const Stream& stream) const {
  if (driver_->capturing(stream.handle())) {
    throw Error(ErrorCode::invalid_argument, operation,
                "copies between host and device wait for the stream, which cannot be done while it is capturing a "
                "graph; copy before or after the capture");
  }
}

void CudaDevice::throw_out_of_memory(std::size_t bytes) const {
  std::size_t free = 0;
  std::size_t total = 0;
  driver_->check(api().cuMemGetInfo(&free, &total), "cuMemGetInfo");
  throw Error(ErrorCode::out_of_memory, print(device()) + " memory",
              "no room for " + std::to_string(bytes) + " bytes: " + std::to_string(free) + " of " +
                  std::to_string(total) + " are free; release tensors or use a smaller batch");
}

}  // namespace ingot
