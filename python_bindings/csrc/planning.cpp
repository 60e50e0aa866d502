// What layers will need and gain, for Python: the kernels of a recording compiled, or its matmuls tuned, and what FP8
// is expected to gain on a linear layer.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "context.h"
#include "ingot/codegen/recording.h"
#include "ingot/codegen/types/target.h"
#include "ingot/nn/planning/conversion.h"
#include "ingot/nn/recipe/recipes.h"
#include "ingot/runtime/measure/matmul_tuning.h"
#include "ingot/runtime/util/error.h"
#include "module.h"
#include "torch_abi/torch_dry_run.h"

namespace ingot::python {
namespace {

namespace nb = nanobind;
using namespace nb::literals;

// Returns (gain or None, what it rests on). An empty name is the GPU of the context.
nb::tuple gain_of(PythonContext& context, const std::string& recipe_name, std::int64_t tokens, std::int64_t in_features,
                  std::int64_t out_features, const std::string& gpu) {
  const GainGpu where = gpu.empty() ? gain_gpu(context.context().tuning_machine()) : gain_gpu(gpu_named(gpu));
  const LinearSize size{.tokens = tokens, .in_features = in_features, .out_features = out_features};
  const LinearGain gain = expected_gain(recipe(recipe_name), size, where);
  std::string note = name(gain.basis);
  if (!gain.note.empty()) note += ": " + gain.note;
  const nb::object number = gain.is_known() ? nb::object(nb::float_(gain.gain())) : nb::object(nb::none());
  return nb::make_tuple(number, note);
}

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

nb::dict to_dict(const MatmulCall& call, const TunedMatmulRecord& tuned) {
  nb::dict entry;
  entry["matmul"] = print(call);
  entry["kernel"] = tuned.record ? print(kernel_spec(tuned.record->chosen)) : std::string();
  entry["us"] = tuned.record ? tuned.record->us : 0.0;
  entry["problem"] = tuned.problem;
  return entry;
}

// Calls Python's progress(done, total, matmul) after each matmul. Those that the limit of `seconds` leaves out have
// neither a kernel nor a problem.
nb::list tune(PythonContext& python, const std::string& text, bool again, double seconds, const nb::object& progress) {
  using Clock = std::chrono::steady_clock;
  Context& context = python.context();
  GpuMatmuls matmuls(context, "tune on a machine that has one");
  if (context.tuning() == Tuning::frozen) {
    throw Error(ErrorCode::invalid_argument, "tune",
                "INGOT_TUNING=frozen, and tuning writes records; set INGOT_TUNING=on");
  }
  const std::vector<MatmulCall> calls = parse_recording(text).recording.matmuls();
  const MatmulTuning tuning = matmuls.tuning();
  const Clock::time_point begin = Clock::now();
  const auto is_late = [&] { return std::chrono::duration<double>(Clock::now() - begin).count() >= seconds; };
  nb::list results;
  for (std::size_t at = 0; at < calls.size(); ++at) {
    const MatmulCall& call = calls[at];
    TunedMatmulRecord tuned;
    try {
      const nb::gil_scoped_release free;
      if (!again) tuned.record = tuning.store->find(tuning.machine, call.spec, call.size);
      if (!tuned.record && !is_late()) tuned = tune_matmul(tuning, call, 0, {.stop = is_late, .hurry = {}});
    } catch (const Error& error) {
      tuned.problem = error.what();
    }
    results.append(to_dict(call, tuned));
    progress(at + 1, calls.size(), print(call));
  }
  return results;
}

}  // namespace

void bind_planning(nb::module_& module) {
  module.def("expected_gain", &gain_of, "context"_a, "recipe"_a, "tokens"_a, "in_features"_a, "out_features"_a,
             "gpu"_a);
  nb::class_<TorchDryRun>(module, "TorchDryRun")
      .def(nb::init<const std::string&>(), "gpu"_a)
      .def("enter", &TorchDryRun::enter)
      .def("leave", &TorchDryRun::leave)
      .def("recording", [](const TorchDryRun& self) { return print(self.recording()); });
  module.def("prepare", &prepare, "context"_a, "recording"_a, "gpu"_a, "progress"_a);
  module.def("gpu_name", &gpu_name, "context"_a);
  module.def("tune", &tune, "context"_a, "recording"_a, "again"_a, "seconds"_a, "progress"_a);
}

}  // namespace ingot::python
