#include "torch_zeros.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>

namespace ingot::python {
namespace {

constexpr int kFewest = 2;  // spare slots, of as many streams in captures that follow each other
constexpr int kAdded = 4;

// The driver's functions for what a capture owns, as cuda.h declares them. PyTorch has loaded the driver.
struct CaptureFunctions {
  int (*info)(CUstream_st* stream, int* status, std::uint64_t* id, void** graph, const void** dependencies,
              std::size_t* count);
  int (*create)(void** object, void* data, void (*destroy)(void*), unsigned references, unsigned flags);
  int (*retain)(void* graph, void* object, unsigned count, unsigned flags);
  int (*release)(void* object, unsigned count);

  bool complete() const { return info != nullptr && create != nullptr && retain != nullptr && release != nullptr; }
};

constexpr int kActive = 1;                 // CU_STREAM_CAPTURE_STATUS_ACTIVE
constexpr unsigned kNoDestructorSync = 1;  // CU_USER_OBJECT_NO_DESTRUCTOR_SYNC
constexpr unsigned kMove = 1;              // CU_GRAPH_USER_OBJECT_MOVE

const CaptureFunctions& driver() {
  static const CaptureFunctions functions = [] {
    CaptureFunctions found{};
    void* const handle = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    if (handle == nullptr) return found;
    const auto look_up = [&](auto& function, const char* name) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(handle, name));
    };
    look_up(found.info, "cuStreamGetCaptureInfo_v2");
    look_up(found.create, "cuUserObjectCreate");
    look_up(found.retain, "cuGraphRetainUserObject");
    look_up(found.release, "cuUserObjectRelease");
    dlclose(handle);  // gives back only the reference that dlopen() took
    return found;
  }();
  return functions;
}

struct Capture {
  std::uint64_t id = 0;
  void* graph = nullptr;  // null: there is none
};

Capture capture_of(CUstream_st* stream) {
  int status = 0;
  Capture capture;
  if (!driver().complete()) return {};
  const int code = driver().info(stream, &status, &capture.id, &capture.graph, nullptr, nullptr);
  return code == 0 && status == kActive ? capture : Capture{};
}

}  // namespace

TorchZeros* TorchZeros::of(int device_index) {
  static auto* const all = new std::array<TorchZeros, 64>;  // never destroyed: graphs may live until the very end
  const auto at = static_cast<std::size_t>(device_index);
  return at < all->size() ? &(*all)[at] : nullptr;
}

void TorchZeros::prepare(Backend& backend, Stream& stream) {
  if (spare_.load(std::memory_order_relaxed) >= kFewest || !driver().complete()) return;
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock) return;  // another thread is at it
  TorchTensor memory = TorchTensor::empty_bytes(kAdded * kBytes, backend.device());
  auto* const data = static_cast<std::byte*>(memory.data());
  backend.fill_zero(data, kAdded * kBytes, stream);
  backend.synchronize(stream);  // a graph may be replayed on any stream
  memory_.push_back(std::move(memory));
  for (int i = 0; i < kAdded; ++i) {
    Slot& slot = slots_.emplace_back();
    slot.owner = this;
    slot.data = data + static_cast<std::size_t>(i) * kBytes;
  }
  spare_ += kAdded;
}

void* TorchZeros::find(std::size_t bytes, CUstream_st* stream) {
  if (bytes > kBytes) return nullptr;
  const Capture capture = capture_of(stream);
  if (capture.graph == nullptr) return nullptr;
  const std::lock_guard lock(mutex_);
  Slot* slot = slot_of(capture.id, stream);
  if (slot == nullptr) {
    slot = take(capture.graph);
    if (slot == nullptr) return nullptr;
    slot->capture = capture.id;
    slot->stream = stream;
  }
  return slot->spoiled ? nullptr : slot->data;
}

void TorchZeros::spoil(CUstream_st* stream) noexcept {
  const Capture capture = capture_of(stream);
  if (capture.graph == nullptr) return;
  const std::lock_guard lock(mutex_);
  if (Slot* const slot = slot_of(capture.id, stream)) slot->spoiled = true;
}

TorchZeros::Slot* TorchZeros::slot_of(std::uint64_t capture, const CUstream_st* stream) {
  const auto found = std::ranges::find_if(slots_, [&](const Slot& slot) {
    return slot.taken.load(std::memory_order_acquire) && slot.capture == capture && slot.stream == stream;
  });
  return found == slots_.end() ? nullptr : &*found;
}

// A spare slot, which the graph keeps from now on.
TorchZeros::Slot* TorchZeros::take(void* graph) {
  const auto found = std::ranges::find_if(
      slots_, [](const Slot& slot) { return !slot.taken.load(std::memory_order_acquire) && !slot.spoiled; });
  if (found == slots_.end()) return nullptr;
  void* object = nullptr;
  if (driver().create(&object, &*found, give_back, 1, kNoDestructorSync) != 0) return nullptr;
  found->taken = true;  // before the driver may call give_back()
  --spare_;
  if (driver().retain(graph, object, 1, kMove) == 0) return &*found;
  driver().release(object, 1);
  return nullptr;
}

void TorchZeros::give_back(void* slot) {
  auto& given = *static_cast<Slot*>(slot);
  if (!given.spoiled) ++given.owner->spare_;
  given.taken.store(false, std::memory_order_release);
}

}  // namespace ingot::python
