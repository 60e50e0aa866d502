// expected_gain() for Python: what FP8 is expected to gain on a linear layer (nn/planning/conversion.h).
#include "ingot/nn/planning/conversion.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <string>

#include "context.h"
#include "ingot/nn/recipe/recipes.h"
#include "module.h"

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

}  // namespace

void bind_linear_gain(nb::module_& module) {
  module.def("expected_gain", &gain_of, "context"_a, "recipe"_a, "tokens"_a, "in_features"_a, "out_features"_a,
             "gpu"_a);
}

}  // namespace ingot::python
