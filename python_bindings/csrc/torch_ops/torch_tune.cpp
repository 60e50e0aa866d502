// Tunes the matmuls of a recording on a context's GPU.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <chrono>
#include <string>
#include <vector>

#include "context.h"
#include "ingot/codegen/recording.h"
#include "ingot/runtime/error.h"
#include "ingot/runtime/measure/matmul_tuning.h"
#include "module.h"

namespace ingot::python {
namespace {

namespace nb = nanobind;
using namespace nb::literals;

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

void bind_torch_tune(nb::module_& module) {
  module.def("tune", &tune, "context"_a, "recording"_a, "again"_a, "seconds"_a, "progress"_a);
}

}  // namespace ingot::python
