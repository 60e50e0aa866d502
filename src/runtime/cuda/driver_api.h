// The functions of libcuda that Ingot calls, in one list. Private to the library: no installed header includes this.
//
// The list is written once. cuda.h renames a function to the version of its ABI (cuMemAlloc -> cuMemAlloc_v2), here as
// everywhere else, so api().cuMemAlloc(...) calls exactly what a program that links libcuda would call.
#pragma once

#include <cuda.h>

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

}  // namespace ingot
