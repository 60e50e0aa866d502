#include "context.h"

#include <array>
#include <atomic>
#include <bit>
#include <mutex>
#include <new>

#include "ingot/runtime/util/error.h"
#include "ingot/runtime/util/single_flight.h"

namespace ingot::python {
namespace {

// PyTorch calls plain functions, so what they share cannot be passed to them. Never destroyed: other threads may call
// until the very end.
struct SharedContexts {
  // The CPU's, and each GPU's, without a lock.
  std::array<std::atomic<PythonContext*>, 65> published{};
  SingleFlight<std::size_t, PythonContext*> made{};

  static SharedContexts& of_process() {
    static auto* const contexts = new SharedContexts;
    return *contexts;
  }

  static std::size_t slot_of(Device device) {
    const std::size_t slot = device.type == DeviceType::cpu ? 0 : 1 + static_cast<std::size_t>(device.index);
    if (slot >= std::tuple_size_v<decltype(published)>) {
      throw Error(ErrorCode::invalid_argument, "device", print(device) + " has too high a number; 63 is the highest");
    }
    return slot;
  }

  // `options` are of this device.
  PythonContext& of(Device device, const ContextOptions& options) {
    const std::size_t slot = slot_of(device);
    PythonContext* const context = made.get(slot, [&] { return new PythonContext(options); });
    published[slot].store(context, std::memory_order_release);
    return *context;
  }
};

}  // namespace

ContextInfo PythonContext::info() const {
  ContextInfo info = context_.info();
  const std::lock_guard lock(mutex_);
  if (!reason_.empty()) info.reason = reason_;
  return info;
}

void PythonContext::set_reason(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  reason_ = reason;
}

std::unique_ptr<Stream> PythonContext::take_stream(std::uintptr_t handle) {
  {
    const std::lock_guard lock(mutex_);
    std::vector<std::unique_ptr<Stream>>& idle = idle_[handle];
    if (!idle.empty()) {
      std::unique_ptr<Stream> taken = std::move(idle.back());
      idle.pop_back();
      return taken;
    }
  }
  return std::make_unique<Stream>(context_.backend(), std::bit_cast<CUstream_st*>(handle));
}

void PythonContext::give_stream(std::uintptr_t handle, std::unique_ptr<Stream> stream) noexcept {
  try {
    const std::lock_guard lock(mutex_);
    idle_[handle].push_back(std::move(stream));
  } catch (const std::bad_alloc&) {
    return;  // the next call makes another
  }
}

ContextOptions context_options(const std::string& device) {
  ContextOptions options = ContextOptions::from_environment();
  if (device == "auto") return options;
  if (device == "cpu") {
    options.where = ContextOptions::Where::cpu;
    return options;
  }
  const bool has_index = device.starts_with("cuda:") && device.size() > 5 && device.size() < 9 &&
                         device.find_first_not_of("0123456789", 5) == std::string::npos;
  if (device != "cuda" && !has_index) {
    throw Error(ErrorCode::invalid_argument, "device",
                "expected \"auto\", \"cpu\", \"cuda\" or \"cuda:N\", got \"" + device + "\"");
  }
  options.where = ContextOptions::Where::cuda;
  options.device_index = has_index ? std::stoi(device.substr(5)) : 0;
  return options;
}

PythonContext& shared_context(const std::string& device) {
  const ContextOptions options = context_options(device);
  const ChosenDevice chosen = choose_device(options);
  PythonContext& context = shared_context(chosen.device);
  if (options.where == ContextOptions::Where::automatic && chosen.device.type == DeviceType::cpu) {
    context.set_reason(chosen.reason);
  }
  return context;
}

PythonContext& shared_context(Device device) {
  SharedContexts& contexts = SharedContexts::of_process();
  PythonContext* const published = contexts.published[SharedContexts::slot_of(device)].load(std::memory_order_acquire);
  return published != nullptr ? *published : contexts.of(device, context_options(print(device)));
}

void end_shared_contexts() {
  for (const std::atomic<PythonContext*>& each : SharedContexts::of_process().published) {
    if (PythonContext* const context = each.load(std::memory_order_acquire)) context->context().finish();
  }
}

}  // namespace ingot::python
