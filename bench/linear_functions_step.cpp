#include "linear_functions_step.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string>

#include "ingot/nn/modules/float8_linear.h"

namespace ingot::bench {
namespace {

struct Delayed {
  const char* name;
  const std::optional<Cast>* cast;
  const Tensor* first;
  LinearScale* scale;
  int slot = -1;
};

}  // namespace

FunctionsStep::FunctionsStep(const Recipe& recipe, const FunctionsStepTensors& t, Backend& backend, Stream& stream)
    : backend_(&backend),
      stream_(&stream),
      plan_(linear_plan({.config = recipe.config,
                         .shape = {.in_features = t.input.cols, .out_features = t.output.cols},
                         .dtypes = {.input = t.input.dtype}})),
      delayed_(backend),
      weight_(backend, plan_.weight_memory().bytes),
      saved_memory_(backend, plan_.saved_memory(t.input.rows).bytes),
      scratch_(backend, std::max(plan_.forward_scratch(t.input.rows).bytes,
                                 plan_.backward_scratch(t.input.rows, {.bias = false}).bytes)),
      constants_(backend, kLinearConstantBytes),
      saved_{.memory = region_of(saved_memory_)} {
  LinearScales scales = linear_constants(plan_, backend, region_of(constants_), stream);
  std::array<Delayed, 3> slots{{{"input", &plan_.scaling.input, &t.input, &scales.input},
                                {"weight", &plan_.scaling.weight, &t.weight, &scales.weight},
                                {"grad_output", &plan_.scaling.grad_output, &t.grad_output, &scales.grad_output}}};
  for (Delayed& each : slots) {
    if (*each.cast && (*each.cast)->scaling == Scaling::delayed) {
      each.slot = delayed_.add(each.name, (*each.cast)->dtype, (*each.cast)->pow2);
    }
  }
  for (const Delayed& each : slots) {
    if (each.slot < 0) continue;
    delayed_.start(each.slot, *each.first, stream);
    *each.scale = {.scale = delayed_.scale(each.slot), .amax = delayed_.amax(each.slot)};
  }
  const MemoryRegion scratch = region_of(scratch_);
  forward_ = {
      .input = t.input, .weight = t.weight, .output = t.output, .scales = scales, .saved = &saved_, .scratch = scratch};
  backward_ = {.saved = &saved_,
               .grad_output = t.grad_output,
               .grad_input = t.grad_input,
               .grad_weight = t.grad_weight,
               .input = t.input,
               .weight = t.weight,
               .output = t.output,
               .scales = scales,
               .scratch = scratch};
  if (!plan_.weight.any) return;
  forward_.weight_into = region_of(weight_);
  backward_.codes = weight_codes(plan_, region_of(weight_), backend.device());
}

void FunctionsStep::enqueue() {
  linear_forward(plan_, *backend_, forward_, {.stream = *stream_});
  linear_backward(plan_, *backend_, backward_, {.stream = *stream_});
  delayed_.sync_amax_history(*stream_);
}

}  // namespace ingot::bench
