#include "torch_operator.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <array>
#include <atomic>

namespace ingot::python {
namespace {

namespace nb = nanobind;

// Python keeps the context until it ends.
// Kept as long as this module, whatever becomes of Python's own reference.
PythonContext* context_of_python(Device device) {
  const nb::gil_scoped_acquire lock;
  try {
    const nb::object context = nb::module_::import_("ingot._context").attr("context_for")(print(device));
    nb::cast<nb::dict>(nb::module_::import_("ingot._core").attr("_torch_contexts"))[print(device).c_str()] = context;
    return nb::cast<PythonContext*>(context);
  } catch (nb::python_error& error) {
    throw Error(ErrorCode::not_found, print(device), error.what());
  }
}

}  // namespace

PythonContext& torch_context(Device device) {
  // The CPU's, and each GPU's. PyTorch calls plain functions, so what they share cannot be passed to them.
  static std::array<std::atomic<PythonContext*>, 65> contexts{};
  const auto slot = static_cast<std::size_t>(device.type == DeviceType::cpu ? 0 : 1 + device.index);
  if (slot >= contexts.size()) throw Error(ErrorCode::invalid_argument, "device", "has too high a number");
  PythonContext* context = contexts[slot].load(std::memory_order_acquire);
  if (context == nullptr) {
    context = context_of_python(device);
    contexts[slot].store(context, std::memory_order_release);
  }
  return *context;
}

void give(TorchValue* stack, std::initializer_list<TorchTensor*> results) {
  for (TorchTensor* result : results) *stack++ = reinterpret_cast<TorchValue>(result->release());
}

std::int64_t tokens_of(const TorchTensor& tensor) {
  std::int64_t tokens = 1;
  const std::span<const std::int64_t> sizes = tensor.sizes();
  for (const std::int64_t size : sizes.first(sizes.empty() ? 0 : sizes.size() - 1)) tokens *= size;
  return tokens;
}

}  // namespace ingot::python
