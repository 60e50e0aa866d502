#include "ingot/runtime/jit/launcher.h"

#include <limits>

#include "ingot/runtime/cuda/driver.h"
#include "ingot/runtime/util/error.h"

namespace ingot {

Launcher::Launcher(CudaDevice& device, KernelCache& cache)
    : device_(&device),
      cache_(&cache),
      overlapping_(driver().overlaps_kernels(device.device().index)),
      target_(driver().device_target(device.device().index)),
      room_{.multiprocessors = driver().multiprocessors(device.device().index),
            .large_clusters = driver().uses_whole_device(device.device().index)},
      block_shared_bytes_(driver().block_shared_bytes(device.device().index)) {}

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

// The default stream is that of the context that is current, nearly always ours.
Launcher::Room Launcher::room_of(CUstream_st* stream) const {
  const Driver::Api& api = driver().api();
  const CUcontext ours = driver().context(device_->device().index);
  CUcontext context = nullptr;
  CUgreenCtx green = nullptr;
  if (stream == nullptr && api.cuCtxGetCurrent(&context) == CUDA_SUCCESS && context == ours) return room_;
  driver().check(api.cuStreamGetCtx_v2(stream, &context, &green), "cuStreamGetCtx_v2");
  if (green == nullptr && context == ours) return room_;
  CUdevResource part{};
  driver().check(green != nullptr ? api.cuGreenCtxGetDevResource(green, &part, CU_DEV_RESOURCE_TYPE_SM)
                                  : api.cuCtxGetDevResource(context, &part, CU_DEV_RESOURCE_TYPE_SM),
                 "cuGreenCtxGetDevResource");
  return {.multiprocessors = static_cast<int>(part.sm.smCount), .large_clusters = false};
}

}  // namespace ingot
