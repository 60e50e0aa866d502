#include "ingot/runtime/jit/launcher.h"

#include <bit>
#include <limits>

#include "ingot/runtime/cuda/driver.h"
#include "ingot/runtime/error.h"

namespace ingot {

const Kernel& Launcher::load(const KernelSpec& spec, Pass pass, const Stream& stream) const {
  if (capturing(stream)) {
    throw Error(ErrorCode::invalid_argument, print(spec),
                "this kernel is not loaded yet, and nothing may be compiled or loaded while the stream is capturing a "
                "graph; run the step once before capturing it");
  }
  return cache_->get(spec, pass);
}

unsigned Launcher::checked_grid(std::int64_t grid) {
  if (grid <= std::numeric_limits<std::int32_t>::max()) return static_cast<unsigned>(grid);
  throw Error(ErrorCode::invalid_argument, "launch",
              "the tensors need " + std::to_string(grid) + " blocks, but CUDA launches at most 2147483647: split them");
}

void Launcher::fill(void* data, float value, std::int64_t count, const Stream& stream) const {
  driver_->check(driver_->api().cuMemsetD32Async(reinterpret_cast<CUdeviceptr>(data), std::bit_cast<unsigned>(value),
                                                 static_cast<std::size_t>(count), stream.handle()),
                 "cuMemsetD32Async");
}

void Launcher::fill_zero(void* data, std::size_t bytes, const Stream& stream) const {
  driver_->check(driver_->api().cuMemsetD8Async(reinterpret_cast<CUdeviceptr>(data), 0, bytes, stream.handle()),
                 "cuMemsetD8Async");
}

// The default stream is that of the context that is current, nearly always ours.
Launcher::Room Launcher::room_of(CUstream_st* stream) const {
  const Driver::Api& api = driver_->api();
  const CUcontext ours = driver_->context(device_index_);
  CUcontext context = nullptr;
  CUgreenCtx green = nullptr;
  if (stream == nullptr && api.cuCtxGetCurrent(&context) == CUDA_SUCCESS && context == ours) return room_;
  driver_->check(api.cuStreamGetCtx_v2(stream, &context, &green), "cuStreamGetCtx_v2");
  if (green == nullptr && context == ours) return room_;
  CUdevResource part{};
  driver_->check(green != nullptr ? api.cuGreenCtxGetDevResource(green, &part, CU_DEV_RESOURCE_TYPE_SM)
                                  : api.cuCtxGetDevResource(context, &part, CU_DEV_RESOURCE_TYPE_SM),
                 "cuGreenCtxGetDevResource");
  return {.multiprocessors = static_cast<int>(part.sm.smCount), .large_clusters = false};
}

bool Launcher::capturing(const Stream& stream) const {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  driver_->check(driver_->api().cuStreamIsCapturing(stream.handle(), &status), "cuStreamIsCapturing");
  return status != CU_STREAM_CAPTURE_STATUS_NONE;
}

}  // namespace ingot
