// The driver that does nothing, of make_dry_driver(). libcuda's functions take no state of ours, so its state is where
// libcuda has its own: in the handles, and in each thread's current context. A device's number is its place in
// known_gpus(). (A stream that joins another's capture does not remember it.)
#include "ingot/runtime/cuda/driver.h"

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

// cuda.h leaves these types open.
struct CUctx_st {
  // No processor has such addresses: they are between the two halves that it can use.
  static constexpr std::uint64_t kFirstAddress = std::uint64_t{1} << 56U;

  CUdevice device = 0;
  std::atomic<std::uint64_t> next_address{kFirstAddress};
};

struct CUuserObject_st {
  void* data;
  CUhostFn destroy;
};

struct CUgraph_st {
  std::vector<CUuserObject> objects;
};

struct CUstream_st {
  CUgraph graph = nullptr;  // while it is capturing
  std::uint64_t capture = 0;
};

namespace ingot {
namespace {

constexpr int kVersion = 13000;
constexpr std::size_t kMemory = std::size_t{1} << 50U;

// The current context of this thread, as in libcuda.
CUcontext& current_context() {
  thread_local CUcontext current = nullptr;
  return current;
}

const Gpu& gpu_of(CUdevice device) { return known_gpus()[static_cast<std::size_t>(device)]; }

// A handle that stands for nothing.
template <class Handle>
Handle some_handle() {
  return reinterpret_cast<Handle>(std::uintptr_t{16});
}

template <class... Ignored>
CUresult succeed(Ignored...) {
  return CUDA_SUCCESS;
}

template <class Handle, class... Ignored>
CUresult give_handle(Handle* handle, Ignored...) {
  *handle = some_handle<Handle>();
  return CUDA_SUCCESS;
}

CUresult get_version(int* version) {
  *version = kVersion;
  return CUDA_SUCCESS;
}

CUresult get_error_text(CUresult, const char** text) {
  *text = "an error of the dry driver";
  return CUDA_SUCCESS;
}

CUresult get_device_count(int* count) {
  *count = 1;
  return CUDA_SUCCESS;
}

CUresult get_device_name(char* name, int size, CUdevice device) {
  const std::string_view text = gpu_of(device).device;
  std::snprintf(name, static_cast<std::size_t>(size), "%.*s", static_cast<int>(text.size()), text.data());
  return CUDA_SUCCESS;
}

CUresult get_attribute(int* value, CUdevice_attribute which, CUdevice device) {
  const Gpu& gpu = gpu_of(device);
  switch (which) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *value = gpu.target.major; return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: *value = gpu.target.minor; return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *value = gpu.multiprocessors; return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: *value = gpu.block_shared_bytes; return CUDA_SUCCESS;
    default: return CUDA_ERROR_NOT_SUPPORTED;
  }
}

CUresult set_current(CUcontext context) {
  current_context() = context;
  return CUDA_SUCCESS;
}

CUresult get_current(CUcontext* context) {
  *context = current_context();
  return CUDA_SUCCESS;
}

CUresult get_current_device(CUdevice* device) {
  if (current_context() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  *device = current_context()->device;
  return CUDA_SUCCESS;
}

CUresult get_resource(CUcontext context, CUdevResource* resource, CUdevResourceType) {
  resource->sm.smCount = static_cast<unsigned>(gpu_of(context->device).multiprocessors);
  return CUDA_SUCCESS;
}

CUresult get_green_resource(CUgreenCtx, CUdevResource*, CUdevResourceType) { return CUDA_ERROR_INVALID_CONTEXT; }

CUresult get_stream_context(CUstream, CUcontext* context, CUgreenCtx* green) {
  *green = nullptr;
  return get_current(context);
}

CUresult get_memory(std::size_t* free, std::size_t* total) {
  *free = *total = kMemory;
  return CUDA_SUCCESS;
}

// Never the same address twice, and a gap after each piece.
CUresult allocate(CUdeviceptr* data, std::size_t bytes) {
  constexpr std::size_t kAlignment = 256;
  if (current_context() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (bytes > kMemory) return CUDA_ERROR_OUT_OF_MEMORY;
  *data = current_context()->next_address.fetch_add((bytes / kAlignment + 2) * kAlignment, std::memory_order_relaxed);
  return CUDA_SUCCESS;
}

CUresult copy_to_host(void* host, CUdeviceptr, std::size_t bytes, CUstream) {
  std::memset(host, 0, bytes);
  return CUDA_SUCCESS;
}

CUresult create_stream(CUstream* stream, unsigned) {
  *stream = new CUstream_st;
  return CUDA_SUCCESS;
}

CUresult destroy_stream(CUstream stream) {
  delete stream;
  return CUDA_SUCCESS;
}

CUresult is_capturing(CUstream stream, CUstreamCaptureStatus* status) {
  const bool capturing = stream != nullptr && stream->graph != nullptr;
  *status = capturing ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
  return CUDA_SUCCESS;
}

CUresult begin_capture(CUstream stream, CUstreamCaptureMode) {
  static std::atomic<std::uint64_t> captures{0};
  if (stream == nullptr || stream->graph != nullptr) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  stream->graph = new CUgraph_st;
  stream->capture = ++captures;
  return CUDA_SUCCESS;
}

CUresult end_capture(CUstream stream, CUgraph* graph) {
  if (stream == nullptr || stream->graph == nullptr) return CUDA_ERROR_ILLEGAL_STATE;
  *graph = std::exchange(stream->graph, nullptr);
  return CUDA_SUCCESS;
}

CUresult capture_info(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* capture, CUgraph* graph,
                      const CUgraphNode**, const CUgraphEdgeData**, std::size_t*) {
  static_cast<void>(is_capturing(stream, status));
  if (*status == CU_STREAM_CAPTURE_STATUS_NONE) return CUDA_SUCCESS;
  *capture = stream->capture;
  *graph = stream->graph;
  return CUDA_SUCCESS;
}

CUresult create_object(CUuserObject* object, void* data, CUhostFn destroy, unsigned, unsigned) {
  *object = new CUuserObject_st{data, destroy};
  return CUDA_SUCCESS;
}

CUresult release_object(CUuserObject object, unsigned) {
  object->destroy(object->data);
  delete object;
  return CUDA_SUCCESS;
}

CUresult retain_object(CUgraph graph, CUuserObject object, unsigned, unsigned) {
  graph->objects.push_back(object);
  return CUDA_SUCCESS;
}

CUresult destroy_graph(CUgraph graph) {
  for (CUuserObject object : graph->objects) static_cast<void>(release_object(object, 1));
  delete graph;
  return CUDA_SUCCESS;
}

// Reports one node, as if every capture had found something.
CUresult graph_nodes(CUgraph, CUgraphNode*, std::size_t* count) {
  *count = 1;
  return CUDA_SUCCESS;
}

CUresult elapsed_time(float* milliseconds, CUevent, CUevent) {
  *milliseconds = 0;
  return CUDA_SUCCESS;
}

// Computes as if one block filled a multiprocessor.
CUresult active_clusters(int* clusters, CUfunction, const CUlaunchConfig* config) {
  unsigned blocks = 1;
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    if (config->attrs[i].id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) blocks = config->attrs[i].value.clusterDim.x;
  }
  if (current_context() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  *clusters = gpu_of(current_context()->device).multiprocessors / static_cast<int>(blocks);
  return CUDA_SUCCESS;
}

Driver::Api dry_functions() {
  Driver::Api api;
  api.cuInit = succeed;
  api.cuDriverGetVersion = get_version;
  api.cuGetErrorName = get_error_text;
  api.cuGetErrorString = get_error_text;
  api.cuDeviceGetCount = get_device_count;
  api.cuDeviceGet = succeed;
  api.cuDeviceGetName = get_device_name;
  api.cuDeviceGetAttribute = get_attribute;
  api.cuDevicePrimaryCtxRetain = succeed;
  api.cuDevicePrimaryCtxRelease = succeed;
  api.cuCtxSetCurrent = set_current;
  api.cuCtxGetCurrent = get_current;
  api.cuCtxGetDevice = get_current_device;
  api.cuCtxGetDevResource = get_resource;
  api.cuGreenCtxGetDevResource = get_green_resource;
  api.cuMemGetInfo = get_memory;
  api.cuMemAlloc = allocate;
  api.cuMemFree = succeed;
  api.cuMemcpyHtoDAsync = succeed;
  api.cuMemcpyDtoHAsync = copy_to_host;
  api.cuMemcpyDtoDAsync = succeed;
  api.cuMemsetD8Async = succeed;
  api.cuMemsetD32Async = succeed;
  api.cuPointerGetAttribute = succeed;
  api.cuStreamCreate = create_stream;
  api.cuStreamDestroy = destroy_stream;
  api.cuStreamSynchronize = succeed;
  api.cuStreamGetCtx_v2 = get_stream_context;
  api.cuStreamIsCapturing = is_capturing;
  api.cuStreamBeginCapture = begin_capture;
  api.cuStreamEndCapture = end_capture;
  api.cuStreamGetCaptureInfo_v3 = capture_info;
  api.cuThreadExchangeStreamCaptureMode = succeed;
  api.cuGraphInstantiate = give_handle;
  api.cuGraphGetNodes = graph_nodes;
  api.cuGraphExecUpdate = succeed;
  api.cuGraphLaunch = succeed;
  api.cuGraphExecDestroy = succeed;
  api.cuGraphDestroy = destroy_graph;
  api.cuUserObjectCreate = create_object;
  api.cuUserObjectRelease = release_object;
  api.cuGraphRetainUserObject = retain_object;
  api.cuEventCreate = give_handle;
  api.cuEventDestroy = succeed;
  api.cuEventRecord = succeed;
  api.cuEventSynchronize = succeed;
  api.cuEventElapsedTime = elapsed_time;
  api.cuStreamWaitEvent = succeed;
  api.cuLibraryLoadData = give_handle;
  api.cuLibraryUnload = succeed;
  api.cuLibraryGetKernel = give_handle;
  api.cuKernelSetAttribute = succeed;
  api.cuLaunchKernelEx = succeed;
  api.cuOccupancyMaxActiveClusters = active_clusters;
  api.cuTensorMapEncodeTiled = succeed;
  return api;
}

// A thread that had none keeps ours as its current context (CurrentContext).
void forget(CUctx_st* context) {
  if (current_context() == context) current_context() = nullptr;
  delete context;
}

}  // namespace

std::unique_ptr<Driver> make_dry_driver(const Gpu& gpu) {
  const std::shared_ptr<CUctx_st> context(new CUctx_st, forget);
  context->device = static_cast<CUdevice>(&gpu_named(gpu.name) - known_gpus().data());
  return Driver::over(dry_functions(), context->device, context);
}

}  // namespace ingot
