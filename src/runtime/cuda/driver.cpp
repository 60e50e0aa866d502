#include "ingot/runtime/cuda/driver.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <utility>
#include <vector>

#include "ingot/runtime/util/error.h"
#include "ingot/runtime/util/library.h"

namespace ingot {
namespace {

constexpr const char* kLibraryName = "libcuda.so.1";

// cuda.h's macros are expanded before the name becomes text: "cuMemAlloc_v2".
#define INGOT_TEXT(name) #name
#define INGOT_EXPANDED_TEXT(name) INGOT_TEXT(name)

// The first entry point that the library lacks, or null.
const char* resolve(const Library& library, Driver::Api& api) {
#define INGOT_RESOLVE(function)                                                                           \
  api.function = reinterpret_cast<decltype(api.function)>(library.symbol(INGOT_EXPANDED_TEXT(function))); \
  if (api.function == nullptr) return INGOT_EXPANDED_TEXT(function);
  INGOT_DRIVER_FUNCTIONS(INGOT_RESOLVE)
#undef INGOT_RESOLVE
  return nullptr;
}

#undef INGOT_EXPANDED_TEXT
#undef INGOT_TEXT

// "CUDA_ERROR_NO_DEVICE: no CUDA-capable device is detected"
std::string text_of(const Driver::Api& api, CUresult result) {
  const char* name = nullptr;
  const char* description = nullptr;
  if (api.cuGetErrorName(result, &name) != CUDA_SUCCESS || name == nullptr) {
    return fmt::format("unknown CUDA error {}", static_cast<int>(result));
  }
  if (api.cuGetErrorString(result, &description) != CUDA_SUCCESS || description == nullptr) return name;
  return fmt::format("{}: {}", name, description);
}

}  // namespace

struct Driver::State {
  // The context of one device. A primary context is retained until the driver object is destroyed.
  struct UsedContext {
    std::atomic<CUcontext> context{nullptr};
    bool is_primary = true;
  };

  Library library;
  int version = 0;
  std::vector<CUdevice> devices;
  std::vector<UsedContext> contexts;      // one per device
  std::shared_ptr<CUctx_st> own_context;  // of a driver without libcuda
  pid_t process = ::getpid();             // that opened it
};

Driver::Driver() : api_(std::make_unique<Api>()), state_(std::make_unique<State>()) {}

Driver::~Driver() {
  for (std::size_t i = 0; i < state_->contexts.size(); ++i) {
    // At exit the driver may be gone already (CUDA_ERROR_DEINITIALIZED): nothing is left to release then.
    const State::UsedContext& used = state_->contexts[i];
    if (used.context != nullptr && used.is_primary)
      static_cast<void>(api_->cuDevicePrimaryCtxRelease(state_->devices[i]));
  }
}

std::unique_ptr<Driver> Driver::open(std::string& problem) {
  std::unique_ptr<Driver> driver(new Driver);
  std::string error;
  driver->state_->library = Library::open(kLibraryName, error);
  if (!driver->state_->library) {
    problem =
        fmt::format("no CUDA driver: {} not found ({}); install NVIDIA's driver to use a GPU", kLibraryName, error);
    return nullptr;
  }
  Api& api = *driver->api_;
  State& state = *driver->state_;
  if (const char* missing = resolve(state.library, api)) {
    problem = fmt::format("the CUDA driver {} is too old: it lacks {}; CUDA 12.8 (driver 570) or newer is needed",
                          state.library.path(), missing);
    return nullptr;
  }
  const auto fails = [&](CUresult result, const char* call) {
    if (result == CUDA_SUCCESS) return false;
    problem =
        fmt::format("the CUDA driver {} cannot be used: {} gave {}", state.library.path(), call, text_of(api, result));
    return true;
  };
  int count = 0;
  if (fails(api.cuInit(0), "cuInit") || fails(api.cuDriverGetVersion(&state.version), "cuDriverGetVersion") ||
      fails(api.cuDeviceGetCount(&count), "cuDeviceGetCount")) {
    return nullptr;
  }
  if (count == 0) {
    problem = fmt::format("the CUDA driver {} sees no GPU; check CUDA_VISIBLE_DEVICES", state.library.path());
    return nullptr;
  }
  state.devices.resize(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) {
    if (fails(api.cuDeviceGet(&state.devices[static_cast<std::size_t>(i)], i), "cuDeviceGet")) return nullptr;
  }
  state.contexts = std::vector<State::UsedContext>(state.devices.size());
  return driver;
}

std::unique_ptr<Driver> Driver::over(const Api& functions, CUdevice device, std::shared_ptr<CUctx_st> context) {
  std::unique_ptr<Driver> driver(new Driver);
  *driver->api_ = functions;
  State& state = *driver->state_;
  driver->check(functions.cuDriverGetVersion(&state.version), "cuDriverGetVersion");
  state.devices = {device};
  state.contexts = std::vector<State::UsedContext>(1);
  state.contexts.front().context = context.get();
  state.own_context = std::move(context);
  return driver;
}

namespace {

std::size_t checked_index(int index, std::size_t count) {
  if (index < 0 || static_cast<std::size_t>(index) >= count) {
    throw Error(ErrorCode::not_found, fmt::format("cuda:{}", index),
                fmt::format("there is no such device; the driver sees {}, numbered from 0", count));
  }
  return static_cast<std::size_t>(index);
}

}  // namespace

int Driver::device_count() const { return static_cast<int>(state_->devices.size()); }

std::string Driver::device_name(int index) const {
  const CUdevice device = state_->devices[checked_index(index, state_->devices.size())];
  std::array<char, 256> name{};
  check(api_->cuDeviceGetName(name.data(), static_cast<int>(name.size()) - 1, device), "cuDeviceGetName");
  return name.data();
}

namespace {

int attribute(const Driver& driver, CUdevice device, CUdevice_attribute which) {
  int value = 0;
  driver.check(driver.api().cuDeviceGetAttribute(&value, which, device), "cuDeviceGetAttribute");
  return value;
}

}  // namespace

Target Driver::device_target(int index) const {
  const CUdevice device = state_->devices[checked_index(index, state_->devices.size())];
  return target_for(attribute(*this, device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR),
                    attribute(*this, device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR));
}

unsigned Driver::block_shared_bytes(int index) const {
  const CUdevice device = state_->devices[checked_index(index, state_->devices.size())];
  return static_cast<unsigned>(attribute(*this, device, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN));
}

int Driver::multiprocessors(int index) const {
  const CUdevice device = state_->devices[checked_index(index, state_->devices.size())];
  const State::UsedContext& used = state_->contexts[static_cast<std::size_t>(index)];
  if (used.is_primary) return attribute(*this, device, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
  CUdevResource resource{};
  check(api_->cuCtxGetDevResource(used.context, &resource, CU_DEV_RESOURCE_TYPE_SM), "cuCtxGetDevResource");
  return static_cast<int>(resource.sm.smCount);
}

bool Driver::uses_whole_device(int index) const {
  return state_->contexts[checked_index(index, state_->contexts.size())].is_primary;
}

bool Driver::overlaps_kernels(int index) const {
  constexpr int kGraphsOverlapFrom = 12030;
  return device_target(index).major >= 9 && state_->version >= kGraphsOverlapFrom;
}

std::string Driver::version() const {
  return fmt::format("{}.{}", state_->version / 1000, state_->version % 1000 / 10);
}

int Driver::cuda_version() const { return state_->version; }

const std::string& Driver::path() const { return state_->library.path(); }

int Driver::use_context(CUcontext context) {
  CUdevice device = 0;
  {
    const CurrentContext current(*api_, context);
    check(current.result(), "cuCtxSetCurrent");
    check(api_->cuCtxGetDevice(&device), "cuCtxGetDevice");
  }
  const auto found = std::find(state_->devices.begin(), state_->devices.end(), device);
  if (found == state_->devices.end()) {
    throw Error(ErrorCode::not_found, "ContextOptions::cuda_context",
                "is of a device that the driver does not list; check CUDA_VISIBLE_DEVICES");
  }
  const auto i = static_cast<std::size_t>(found - state_->devices.begin());
  state_->contexts[i].context = context;
  state_->contexts[i].is_primary = false;
  return static_cast<int>(i);
}

// Every operation calls this, so a context that is retained already costs one atomic load.
CUcontext Driver::context(int index) const {
  const std::size_t i = checked_index(index, state_->devices.size());
  std::atomic<CUcontext>& retained = state_->contexts[i].context;
  CUcontext context = retained.load(std::memory_order_acquire);
  if (context != nullptr) return context;
  check(api_->cuDevicePrimaryCtxRetain(&context, state_->devices[i]), "cuDevicePrimaryCtxRetain");
  // If two threads retain it at the same time, one of them gives its reference back.
  CUcontext expected = nullptr;
  if (!retained.compare_exchange_strong(expected, context)) {
    check(api_->cuDevicePrimaryCtxRelease(state_->devices[i]), "cuDevicePrimaryCtxRelease");
  }
  return context;
}

void Driver::check(CUresult result, const char* call) const {
  if (result == CUDA_SUCCESS) return;
  const ErrorCode code = result == CUDA_ERROR_OUT_OF_MEMORY ? ErrorCode::out_of_memory : ErrorCode::cuda_failed;
  throw Error(code, call,
              text_of(*api_, result) + (state_->process != ::getpid()
                                            ? "; this process was made by fork() after its parent had opened CUDA, "
                                              "which a child cannot use: start it with the method \"spawn\""
                                            : ""));
}

bool Driver::capturing(CUstream stream) const {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  check(api_->cuStreamIsCapturing(stream, &status), "cuStreamIsCapturing");
  return status != CU_STREAM_CAPTURE_STATUS_NONE;
}

void Driver::fill(void* data, float value, std::size_t count, CUstream stream) const {
  check(api_->cuMemsetD32Async(reinterpret_cast<CUdeviceptr>(data), std::bit_cast<unsigned>(value), count, stream),
        "cuMemsetD32Async");
}

void Driver::fill_zero(void* data, std::size_t bytes, CUstream stream) const {
  check(api_->cuMemsetD8Async(reinterpret_cast<CUdeviceptr>(data), 0, bytes, stream), "cuMemsetD8Async");
}

CurrentContext::CurrentContext(const Driver& driver, int device_index)
    : CurrentContext(driver.api(), driver.context(device_index)) {
  driver.check(result_, "cuCtxSetCurrent");
}

namespace {

// The driver's default streams: null, or the numbers that stand for them.
bool is_default(CUstream stream) { return stream == nullptr || stream == CU_STREAM_LEGACY; }

bool is_in_green_context_of(const Driver::Api& api, CUstream stream, CUcontext primary) {
  CUcontext context = nullptr;
  CUgreenCtx green = nullptr;
  return api.cuStreamGetCtx_v2(stream, &context, &green) == CUDA_SUCCESS && green != nullptr && context == primary;
}

}  // namespace

CurrentContext::CurrentContext(const Driver& driver, int device_index, CUstream stream) : api_(&driver.api()) {
  const CUcontext ours = driver.context(device_index);
  result_ = api_->cuCtxGetCurrent(&previous_);
  is_callers_ = result_ == CUDA_SUCCESS && previous_ != ours && previous_ != nullptr && is_default(stream) &&
                is_in_green_context_of(*api_, stream, ours);
  if (!is_callers_) change_to(ours);
  driver.check(result_, "cuCtxSetCurrent");
}

CurrentContext::CurrentContext(const Driver::Api& api, CUcontext context) : api_(&api) {
  result_ = api.cuCtxGetCurrent(&previous_);
  change_to(context);
}

void CurrentContext::change_to(CUcontext context) {
  if (result_ != CUDA_SUCCESS || previous_ == context) return;
  result_ = api_->cuCtxSetCurrent(context);
  changed_ = result_ == CUDA_SUCCESS;
}

// A failure cannot be reported from here: a broken context reports it to the next call that can throw.
CurrentContext::~CurrentContext() {
  if (changed_ && previous_ != nullptr) static_cast<void>(api_->cuCtxSetCurrent(previous_));
}

}  // namespace ingot
