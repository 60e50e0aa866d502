// The CUDA driver API, opened when first needed. Without a driver the library still builds, loads and runs on the CPU.
// No installed header includes this.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <memory>
#include <string>
#include "ingot/codegen/types/target.h"

// The functions of libcuda that Ingot calls. cuda.h renames a function to the version of its ABI (cuMemAlloc ->
// cuMemAlloc_v2), here as everywhere else, so api().cuMemAlloc(...) calls exactly what a program that links libcuda
// would call.
#define INGOT_DRIVER_FUNCTIONS(X)      \
  X(cuInit)                            \
  X(cuDriverGetVersion)                \
  X(cuGetErrorName)                    \
  X(cuGetErrorString)                  \
  X(cuDeviceGetCount)                  \
  X(cuDeviceGet)                       \
  X(cuDeviceGetName)                   \
  X(cuDeviceGetAttribute)              \
  X(cuDevicePrimaryCtxRetain)          \
  X(cuDevicePrimaryCtxRelease)         \
  X(cuCtxSetCurrent)                   \
  X(cuCtxGetCurrent)                   \
  X(cuCtxGetDevice)                    \
  X(cuCtxGetDevResource)               \
  X(cuGreenCtxGetDevResource)          \
  X(cuMemGetInfo)                      \
  X(cuMemAlloc)                        \
  X(cuMemFree)                         \
  X(cuMemcpyHtoDAsync)                 \
  X(cuMemcpyDtoHAsync)                 \
  X(cuMemcpyDtoDAsync)                 \
  X(cuMemsetD8Async)                   \
  X(cuMemsetD32Async)                  \
  X(cuPointerGetAttribute)             \
  X(cuStreamCreate)                    \
  X(cuStreamDestroy)                   \
  X(cuStreamSynchronize)               \
  X(cuStreamGetCtx_v2)                 \
  X(cuStreamIsCapturing)               \
  X(cuStreamBeginCapture)              \
  X(cuStreamEndCapture)                \
  X(cuStreamGetCaptureInfo_v3)         \
  X(cuThreadExchangeStreamCaptureMode) \
  X(cuGraphInstantiate)                \
  X(cuGraphGetNodes)                   \
  X(cuGraphExecUpdate)                 \
  X(cuGraphLaunch)                     \
  X(cuGraphExecDestroy)                \
  X(cuGraphDestroy)                    \
  X(cuUserObjectCreate)                \
  X(cuUserObjectRelease)               \
  X(cuGraphRetainUserObject)           \
  X(cuEventCreate)                     \
  X(cuEventDestroy)                    \
  X(cuEventRecord)                     \
  X(cuEventSynchronize)                \
  X(cuEventElapsedTime)                \
  X(cuStreamWaitEvent)                 \
  X(cuLibraryLoadData)                 \
  X(cuLibraryUnload)                   \
  X(cuLibraryGetKernel)                \
  X(cuKernelSetAttribute)              \
  X(cuLaunchKernelEx)                  \
  X(cuOccupancyMaxActiveClusters)      \
  X(cuTensorMapEncodeTiled)

namespace ingot {

struct DriverApi {
#define INGOT_MEMBER(function) decltype(&::function) function = nullptr;
  INGOT_DRIVER_FUNCTIONS(INGOT_MEMBER)
#undef INGOT_MEMBER
};

// One function pointer per entry point that we call, with cuda.h's own types. A driver that lacks any of them is
// reported and not used at all.
class Driver {
 public:
  // Null, with the reason in `problem`, if there is no libcuda.so.1, cuInit failed or there is no device.
  static std::unique_ptr<Driver> open(std::string& problem);
  using Api = DriverApi;
  // Functions in place of libcuda's, for one device whose primary context is `context`: see driver.h.
  static std::unique_ptr<Driver> over(const Api& functions, CUdevice device, std::shared_ptr<CUctx_st> context);
  ~Driver();

  int device_count() const;
  std::string device_name(int index) const;
  Target device_target(int index) const;
  // The multiprocessors that the context can use: a green context has a part of the device's.
  int multiprocessors(int index) const;
  // Is the context that is used the device's primary one, which can use all of it?
  bool uses_whole_device(int index) const;
  // The most shared memory that one block can have.
  unsigned block_shared_bytes(int index) const;
  // Does programmatic dependent launch work, in streams and in graphs? From sm_90 and CUDA 12.3 on.
  bool overlaps_kernels(int index) const;
  std::string version() const;  // "13.0"
  int cuda_version() const;     // 13000
  const std::string& path() const;

  // From now on, uses the caller's context in place of its device's primary one, and returns that device's index. Call
  // it before anything else uses the device. The context must outlive this object. Throws Error{not_found,
  // cuda_failed}.
  int use_context(CUcontext context);
  // The context that is used on a device: the primary one, retained for the life of this object, or the caller's.
  // CurrentContext makes it current.
  CUcontext context(int index) const;

  // Throws Error{cuda_failed, out_of_memory} "<call>: CUDA_ERROR_...: <description>".
  void check(CUresult result, const char* call) const;

  // On a stream of the context that is current. fill() sets `count` words to this value.
  bool capturing(CUstream stream) const;
  void fill(void* data, float value, std::size_t count, CUstream stream) const;
  void fill_zero(void* data, std::size_t bytes, CUstream stream) const;

  const Api& api() const { return *api_; }

 private:
  Driver();
  std::unique_ptr<Api> api_;
  struct State;
  std::unique_ptr<State> state_;
};

// Makes a CUDA context current on this thread while the object lives. Callers may use another device's context, or one
// that they created: it is restored afterwards. A thread that had no context keeps ours, as it would keep that of
// CUDA's runtime, so that its next call costs one query of the driver.
//
// The default stream is the current context's. Where that is a green context (a part of the device's multiprocessors)
// whose memory is ours, work on the default stream runs in it: it is the stream that the caller has its own work on.
class CurrentContext {
 public:
  // Throws Error{cuda_failed}.
  CurrentContext(const Driver& driver, int device_index);
  // For work on this stream. Likewise.
  CurrentContext(const Driver& driver, int device_index, CUstream stream);
  // For a context that something else retains.
  CurrentContext(const Driver::Api& api, CUcontext context);
  ~CurrentContext();
  CurrentContext(const CurrentContext&) = delete;
  CurrentContext& operator=(const CurrentContext&) = delete;

  // The driver's answer to the change of contexts. If it refused, the current context is unchanged.
  CUresult result() const { return result_; }
  // The caller's green context has stayed current.
  bool is_callers() const { return is_callers_; }

 private:
  void change_to(CUcontext context);

  const Driver::Api* api_;
  CUcontext previous_ = nullptr;
  bool changed_ = false;
  bool is_callers_ = false;
  CUresult result_ = CUDA_SUCCESS;
};

// A CUDA driver that does nothing: the library's own CUDA code runs on it without a GPU, to find out which kernels it
// asks for. Every call succeeds at once. Memory is addresses that nothing may touch, so it costs none and a host that
// reads it crashes; copies to the host give zeros; a stream remembers whether it is capturing, and nothing else. Its
// one device is that GPU, one of known_gpus().
std::unique_ptr<Driver> make_dry_driver(const Gpu& gpu);

}  // namespace ingot
