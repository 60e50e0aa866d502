#include "ingot/runtime/cuda/capture_zeros.h"

#include <algorithm>
#include <mutex>
#include <vector>

#include "ingot/runtime/cuda/driver.h"
#include "ingot/runtime/util/error.h"

namespace ingot {
namespace {

// A capture of this thread, or of another in the mode global, is not to forbid what is no part of it.
class OutsideOfCaptures {
 public:
  explicit OutsideOfCaptures(const Driver::Api& api) : api_(&api) { exchange(); }
  ~OutsideOfCaptures() { exchange(); }
  OutsideOfCaptures(const OutsideOfCaptures&) = delete;
  OutsideOfCaptures& operator=(const OutsideOfCaptures&) = delete;

 private:
  void exchange() { static_cast<void>(api_->cuThreadExchangeStreamCaptureMode(&mode_)); }

  const Driver::Api* api_;
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
};

}  // namespace

// No call of the driver's is made under the mutex: one may destroy a graph, and so come to give_back().
struct CaptureZeros::State {
  struct Used {
    std::uint64_t capture;
    CUstream stream;  // null: spoiled
    void* region;
  };
  // The user object of a graph: releases the region when the graph is destroyed.
  struct Kept {
    std::weak_ptr<State> state;
    void* region;
  };

  static void give_back(void* data) {
    const std::unique_ptr<Kept> kept(static_cast<Kept*>(data));
    const std::shared_ptr<State> state = kept->state.lock();
    if (state == nullptr) return;
    const std::lock_guard lock(state->mutex);
    std::erase_if(state->used, [&](const Used& each) { return each.region == kept->region; });
    state->free.push_back(kept->region);
  }

  std::mutex mutex;
  std::vector<Used> used;
  std::vector<void*> free;
  std::vector<CUdeviceptr> memory;
  CUstream clearing = nullptr;  // where regions are cleared
};

CaptureZeros::CaptureZeros(const Driver& driver, int device_index)
    : driver_(&driver), device_index_(device_index), state_(std::make_shared<State>()) {}

CaptureZeros::~CaptureZeros() {
  if (state_->memory.empty()) return;
  try {
    const CurrentContext current(*driver_, device_index_);
    release();
  } catch (const Error&) {
    return;  // a broken context reports it to the next call that can throw
  }
}

void CaptureZeros::release() noexcept {
  const Driver::Api& api = driver_->api();
  const OutsideOfCaptures outside(api);
  for (const CUdeviceptr memory : state_->memory) static_cast<void>(api.cuMemFree(memory));
  if (state_->clearing != nullptr) static_cast<void>(api.cuStreamDestroy(state_->clearing));
}

std::optional<CaptureZeros::Capture> CaptureZeros::capture_of(CUstream stream) const {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  cuuint64_t number = 0;
  CUgraph graph = nullptr;
  const CUresult result =
      driver_->api().cuStreamGetCaptureInfo_v3(stream, &status, &number, &graph, nullptr, nullptr, nullptr);
  if (result != CUDA_SUCCESS || status != CU_STREAM_CAPTURE_STATUS_ACTIVE) return std::nullopt;
  return Capture{number, graph};
}

std::uint64_t CaptureZeros::capture_number(CUstream stream) const {
  const std::optional<Capture> capture = capture_of(stream);
  return capture ? capture->number : 0;
}

void* CaptureZeros::of(CUstream stream, std::size_t bytes) {
  if (stream == nullptr || bytes > kBytes) return nullptr;
  const std::optional<Capture> capture = capture_of(stream);
  if (!capture) return nullptr;
  {
    const std::lock_guard lock(state_->mutex);
    const auto found = std::ranges::find_if(state_->used, [&](const State::Used& each) {
      return each.capture == capture->number && each.stream == stream;
    });
    if (found != state_->used.end()) return found->region;
  }
  void* const region = take();
  if (region == nullptr) return nullptr;
  if (clear(region) && give_to(*capture, stream, region)) return region;
  const std::lock_guard lock(state_->mutex);
  state_->free.push_back(region);
  return nullptr;
}

void* CaptureZeros::take() {
  const auto last = [&]() -> void* {
    if (state_->free.empty()) return nullptr;
    void* const region = state_->free.back();
    state_->free.pop_back();
    return region;
  };
  {
    const std::lock_guard lock(state_->mutex);
    if (void* const region = last(); region != nullptr) return region;
  }
  CUdeviceptr made = 0;
  {
    const OutsideOfCaptures outside(driver_->api());
    if (driver_->api().cuMemAlloc(&made, kRegions * kBytes) != CUDA_SUCCESS) return nullptr;
  }
  const std::lock_guard lock(state_->mutex);
  state_->memory.push_back(made);
  for (std::size_t i = kRegions; i-- > 0;) state_->free.push_back(reinterpret_cast<void*>(made + i * kBytes));
  return last();
}

// Earlier graphs may have left a region as an error left it.
bool CaptureZeros::clear(void* region) {
  const Driver::Api& api = driver_->api();
  const OutsideOfCaptures outside(api);
  CUstream stream = nullptr;
  {
    const std::lock_guard lock(state_->mutex);
    stream = state_->clearing;
  }
  if (stream == nullptr) {
    if (api.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS) return false;
    CUstream unused = stream;
    {
      const std::lock_guard lock(state_->mutex);
      if (state_->clearing == nullptr) std::swap(state_->clearing, unused);
      stream = state_->clearing;
    }
    if (unused != nullptr) static_cast<void>(api.cuStreamDestroy(unused));  // another thread was faster
  }
  return api.cuMemsetD8Async(reinterpret_cast<CUdeviceptr>(region), 0, kBytes, stream) == CUDA_SUCCESS &&
         api.cuStreamSynchronize(stream) == CUDA_SUCCESS;
}

bool CaptureZeros::give_to(const Capture& capture, CUstream stream, void* region) {
  const Driver::Api& api = driver_->api();
  auto kept = std::make_unique<State::Kept>(State::Kept{state_, region});
  CUuserObject object = nullptr;
  if (api.cuUserObjectCreate(&object, kept.get(), State::give_back, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC) !=
      CUDA_SUCCESS) {
    return false;
  }
  State::Kept* const owned = kept.release();  // the object's
  {
    const std::lock_guard lock(state_->mutex);
    state_->used.push_back({capture.number, stream, region});
  }
  if (api.cuGraphRetainUserObject(capture.graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE) == CUDA_SUCCESS) return true;
  // The region is not given back through the object, as its caller does that.
  owned->state.reset();
  {
    const std::lock_guard lock(state_->mutex);
    std::erase_if(state_->used, [&](const State::Used& each) { return each.region == region; });
  }
  static_cast<void>(api.cuUserObjectRelease(object, 1));
  return false;
}

void CaptureZeros::spoil(CUstream stream) noexcept {
  const std::optional<Capture> capture = stream == nullptr ? std::nullopt : capture_of(stream);
  if (!capture) return;
  void* spoiled = nullptr;
  {
    const std::lock_guard lock(state_->mutex);
    for (State::Used& each : state_->used) {
      if (each.capture != capture->number || each.stream != stream) continue;
      spoiled = each.region;
      each.stream = nullptr;
    }
  }
  if (spoiled == nullptr) return;
  static_cast<void>(driver_->api().cuMemsetD8Async(reinterpret_cast<CUdeviceptr>(spoiled), 0, kBytes, stream));
}

std::size_t CaptureZeros::used() const {
  const std::lock_guard lock(state_->mutex);
  return state_->used.size();
}

}  // namespace ingot
