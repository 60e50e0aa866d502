#include "ingot/runtime/jit/kernel.h"

#include <fmt/format.h>

#include "ingot/runtime/cuda/driver.h"
#include "ingot/runtime/util/error.h"

namespace ingot {
namespace {

constexpr unsigned kDefaultSharedBytes = 48U << 10U;  // what a launch may ask for without opting in

CUlibrary library_of(void* handle) { return static_cast<CUlibrary>(handle); }
CUkernel kernel_of(void* handle) { return static_cast<CUkernel>(handle); }

[[noreturn]] void rethrow(const Error& error, const std::string& subject, const std::string& doing) {
  throw Error(error.code(), subject, fmt::format("{}: {}", doing, error.what()));
}

// The launch shape for which the number of clusters that run at once is remembered; never 0. One word holds this key
// above that number (kCountBits).
constexpr unsigned kCountBits = 20;
constexpr std::uint64_t kCountMask = (1U << kCountBits) - 1;
std::uint64_t shape_key(const LaunchShape& shape) {
  return std::uint64_t{shape.shared_bytes} << 16U | std::uint64_t{shape.block} << 5U | shape.cluster;
}

// All the shared memory that the current device gives one block, minus the kernel's static shared memory.
int shared_limit(const Driver& driver, const KernelResources& resources) {
  CUdevice device = 0;
  int limit = 0;
  driver.check(driver.api().cuCtxGetDevice(&device), "cuCtxGetDevice");
  driver.check(driver.api().cuDeviceGetAttribute(&limit, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, device),
               "cuDeviceGetAttribute");
  return limit - resources.static_shared_bytes;
}

}  // namespace

Kernel::Kernel(const Driver& driver, const CompiledKernel& compiled)
    : driver_(&driver), name_(compiled.lowered_name), resources_(compiled.resources) {
  const Driver::Api& api = driver.api();
  try {
    CUlibrary library = nullptr;
    driver.check(api.cuLibraryLoadData(&library, compiled.cubin.data(), nullptr, nullptr, 0, nullptr, nullptr, 0),
                 "cuLibraryLoadData");
    library_ = library;
    CUkernel kernel = nullptr;
    driver.check(api.cuLibraryGetKernel(&kernel, library, name_.c_str()), "cuLibraryGetKernel");
    kernel_ = kernel;
  } catch (const Error& error) {
    if (library_ != nullptr) static_cast<void>(api.cuLibraryUnload(library_of(library_)));
    rethrow(error, name_, fmt::format("the kernel ({} bytes of machine code) cannot be loaded", compiled.cubin.size()));
  }
}

Kernel::~Kernel() { static_cast<void>(driver_->api().cuLibraryUnload(library_of(library_))); }

void Kernel::launch_raw(CUstream_st* stream, const LaunchShape& shape, const void* params) const {
  if (shape.grid_x == 0 || shape.grid_y == 0 || shape.grid_z == 0) return;
  const Driver::Api& api = driver_->api();
  CUlaunchConfig config{};
  config.gridDimX = shape.grid_x;
  config.gridDimY = shape.grid_y;
  config.gridDimZ = shape.grid_z;
  config.blockDimX = shape.block;
  config.blockDimY = 1;
  config.blockDimZ = 1;
  config.sharedMemBytes = shape.shared_bytes;
  config.hStream = stream;
  CUlaunchAttribute attributes[3]{};
  config.attrs = attributes;
  if (shape.overlapping) {
    CUlaunchAttribute& overlap = attributes[config.numAttrs++];
    overlap.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
    overlap.value.programmaticStreamSerializationAllowed = 1;
  }
  if (shape.cluster > 1) {
    CUlaunchAttribute& cluster = attributes[config.numAttrs++];
    cluster.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
    cluster.value.clusterDim = {.x = shape.cluster, .y = 1, .z = 1};
  }
  if (shape.cooperative) {
    CUlaunchAttribute& cooperative = attributes[config.numAttrs++];
    cooperative.id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
    cooperative.value.cooperative = 1;
  }
  void* arguments[] = {const_cast<void*>(params)};
  // The driver takes a CUkernel where it takes a CUfunction, and finds the current context's copy.
  const auto function = reinterpret_cast<CUfunction>(kernel_);
  try {
    prepare_shared(shape.shared_bytes);
    driver_->check(api.cuLaunchKernelEx(&config, function, arguments, nullptr), "cuLaunchKernelEx");
  } catch (const Error& error) {
    rethrow(error, name_,
            fmt::format("the launch of {} x {} x {} blocks of {} threads with {} bytes of shared memory failed",
                        shape.grid_x, shape.grid_y, shape.grid_z, shape.block, shape.shared_bytes));
  }
}

unsigned Kernel::clusters_at_once(const LaunchShape& shape) const {
  const std::uint64_t key = shape_key(shape);
  const std::uint64_t known = clusters_at_once_.load(std::memory_order_relaxed);
  if (known >> kCountBits == key) return static_cast<unsigned>(known & kCountMask);
  prepare_shared(shape.shared_bytes);
  CUlaunchAttribute cluster{};
  cluster.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
  cluster.value.clusterDim = {.x = shape.cluster, .y = 1, .z = 1};
  CUlaunchConfig config{};
  config.gridDimX = shape.cluster;
  config.gridDimY = 1;
  config.gridDimZ = 1;
  config.blockDimX = shape.block;
  config.blockDimY = 1;
  config.blockDimZ = 1;
  config.sharedMemBytes = shape.shared_bytes;
  config.attrs = &cluster;
  config.numAttrs = 1;
  int clusters = 0;
  driver_->check(driver_->api().cuOccupancyMaxActiveClusters(&clusters, reinterpret_cast<CUfunction>(kernel_), &config),
                 "cuOccupancyMaxActiveClusters");
  if (clusters < 1) {
    throw Error(ErrorCode::cuda_failed, name_,
                fmt::format("no cluster of {} blocks of {} threads with {} bytes of shared memory fits this device",
                            shape.cluster, shape.block, shape.shared_bytes));
  }
  const auto at_once = static_cast<unsigned>(clusters);
  clusters_at_once_.store(key << kCountBits | at_once, std::memory_order_relaxed);
  return at_once;
}

// Allows a launch this much shared memory in addition to the kernel's static one. Once per kernel: a cache and its
// kernels belong to one device.
void Kernel::prepare_shared(unsigned bytes) const {
  if (bytes + static_cast<unsigned>(resources_.static_shared_bytes) <= kDefaultSharedBytes) return;
  if (shared_allowed_.load(std::memory_order_relaxed)) return;
  const int limit = shared_limit(*driver_, resources_);
  if (limit < 0 || static_cast<unsigned>(limit) < bytes) {
    throw Error(ErrorCode::invalid_argument, "shared memory",
                fmt::format("{} bytes asked for, but this device gives a block at most {}", bytes, limit));
  }
  CUdevice device = 0;
  driver_->check(driver_->api().cuCtxGetDevice(&device), "cuCtxGetDevice");
  driver_->check(driver_->api().cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, limit,
                                                     kernel_of(kernel_), device),
                 "cuKernelSetAttribute");
  shared_allowed_.store(true, std::memory_order_relaxed);
}

}  // namespace ingot
