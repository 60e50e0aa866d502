// What a model's layers will need, found by a dry run of them, and compiled before their first step.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <functional>
#include <string>

#include "context.h"
#include "ingot/codegen/recording.h"
#include "ingot/codegen/types/gpu.h"
#include "module.h"
#include "torch_abi/torch_dry_run.h"

namespace ingot::python {
namespace {

namespace nb = nanobind;
using namespace nb::literals;

// Calls progress(done, total, kernel) of Python's, which may raise to end the preparation.
std::function<void(const PrepareProgress&)> to_python(const nb::object& progress) {
  return [&progress](const PrepareProgress& now) {
    const nb::gil_scoped_acquire lock;
    progress(now.done, now.total, now.kernel);
  };
}

// gpu: empty for the context's own, whose kernels are loaded, too. Returns how many of the recording's lines could not
// be read.
int prepare(PythonContext& context, const std::string& text, const std::string& gpu, const nb::object& progress) {
  const ParsedRecording parsed = parse_recording(text);
  const auto tell = to_python(progress);
  const nb::gil_scoped_release free;
  if (gpu.empty()) {
    context.context().prepare(parsed.recording, tell);
  } else {
    context.context().prepare_for(matmul_device(gpu_named(gpu)), parsed.recording, tell);
  }
  return parsed.damaged;
}

// The name of a GPU that asks for the same kernels as the context's; empty if there is none, or no GPU.
std::string gpu_name(PythonContext& context) {
  if (context.context().device().type == DeviceType::cpu) return {};
  const Gpu* const alike = gpu_of_target(context.context().cache().target());
  return alike == nullptr ? std::string() : std::string(alike->name);
}

}  // namespace

void bind_torch_prepare(nb::module_& module) {
  nb::class_<TorchDryRun>(module, "TorchDryRun")
      .def(nb::init<const std::string&>(), "gpu"_a)
      .def("enter", &TorchDryRun::enter)
      .def("leave", &TorchDryRun::leave)
      .def("recording", [](const TorchDryRun& self) { return print(self.recording()); });
  module.def("prepare", &prepare, "context"_a, "recording"_a, "gpu"_a, "progress"_a);
  module.def("gpu_name", &gpu_name, "context"_a);
}

}  // namespace ingot::python
