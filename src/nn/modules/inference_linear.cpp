#include "ingot/nn/modules/inference_linear.h"

#include <fmt/format.h>

#include <cmath>

#include "ingot/nn/linear/layer_call.h"
#include "ingot/nn/linear/tensor_checks.h"
#include "ingot/nn/weights/float8_checkpoint.h"

namespace ingot {
namespace {

bool is_grouped(ScaleGranularity scale) { return scale == kBlocks || scale == kRowGroups; }

Cast activation_cast(const Float8WeightState& weight, std::optional<ScaleGranularity> activations) {
  // cuBLASLt and Hopper's tensor cores multiply e4m3 with either format.
  Cast cast{.dtype = Dtype::e4m3fn, .granularity = is_grouped(weight.scale) ? kRowGroups : kRowwise};
  if (activations) {
    cast.granularity = *activations;
  } else if (weight.input_scale_inv) {
    const float factor = *weight.input_scale_inv;
    if (!(factor > 0) || !std::isfinite(factor) || !std::isfinite(1.0F / factor)) {
      refuse_argument("Float8WeightState input_scale_inv",
                      fmt::format("is {}, but must be positive, and finite as its inverse is: leave it out for "
                                  "dynamic scales",
                                  factor));
    }
    cast.granularity = kTensorwise;
    cast.scaling = Scaling::fixed;
    cast.scale = 1.0F / factor;
  }
  return cast;
}

LinearPlan make_plan(const Float8WeightState& weight, const InferenceLinearOptions& options) {
  const std::string subject = fmt::format("InferenceLinear \"{}\"", options.name);
  check_float8_weight(subject + " weight", weight);
  return linear_plan({.name = options.name,
                      .config = inference_config(weight, options.activations),
                      .shape = {weight.in_features, weight.out_features, options.bias},
                      .dtypes = {.input = options.dtype, .bias = options.bias_dtype, .output = options.output},
                      .fusion = {.epilogue = options.epilogue},
                      .grad_weight = false,
                      .subject = subject});
}

}  // namespace

LinearConfig inference_config(const Float8WeightState& weight, std::optional<ScaleGranularity> activations) {
  const Cast a = activation_cast(weight, activations);
  const Cast b{.dtype = weight.dtype, .granularity = weight.scale};
  return {.output = {.a = a, .b = b, .fast_accumulation = !is_grouped(a.granularity) && !is_grouped(b.granularity)}};
}

InferenceLinear::InferenceLinear(Backend& backend, const Float8WeightState& weight, Stream& stream,
                                 const InferenceLinearOptions& options)
    : backend_(&backend), plan_(make_plan(weight, options)), workspace_(options.workspace) {
  weight_memory_.reserve(backend, plan_.weight_memory().bytes, stream);
  codes_ = weight_from_state(plan_, backend, weight, region_of(weight_memory_), stream);
  constant_memory_.reserve(backend, kLinearConstantBytes, stream);
  scales_ = linear_constants(plan_, backend, region_of(constant_memory_), stream);
}

void InferenceLinear::forward(const InferenceForward& tensors, Stream& stream) {
  LayerCall use(plan_.subject, stream);
  Buffer& workspace = (workspace_ != nullptr ? *workspace_ : own_workspace_).memory;
  const MemoryRegion scratch =
      use.scratch_or(workspace, *backend_, plan_.forward_scratch(tensors.input.rows, LinearPass::inference).bytes);
  linear_forward(plan_, *backend_,
                 {.input = tensors.input,
                  .bias = tensors.bias,
                  .output = tensors.output,
                  .epilogue_inputs = tensors.epilogue_inputs,
                  .codes = codes_,
                  .scales = scales_,
                  .scratch = scratch},
                 {.stream = stream});
}

}  // namespace ingot
