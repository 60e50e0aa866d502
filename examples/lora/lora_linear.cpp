#include "lora_linear.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "ingot/nn/recipe/recipes.h"
#include "ingot/nn/weights/float8_checkpoint.h"

namespace lora {
namespace {

using ingot::Dtype;

ingot::LinearPlanOptions base_options(const LoraOptions& options, bool is_float8) {
  return {.name = options.name,
          .config = is_float8 ? options.config : ingot::high_precision(),
          .shape = {.in_features = options.in_features, .out_features = options.out_features},
          .grad_weight = false};
}

ingot::LinearPlanOptions down_options(const LoraOptions& options) {
  return {.name = options.name + ".down",
          .config = ingot::high_precision(),
          .shape = {.in_features = options.in_features, .out_features = options.rank}};
}

// Its epilogue adds what the frozen weight gives.
ingot::LinearPlanOptions up_options(const LoraOptions& options) {
  return {.name = options.name + ".up",
          .config = ingot::high_precision(),
          .shape = {.in_features = options.rank, .out_features = options.out_features},
          .fusion = {.epilogue = ingot::parse_pointwise(fmt::format("x * {} + base", options.scale))}};
}

std::size_t scratch_bytes(const ingot::LinearPlan& plan, std::int64_t tokens) {
  return std::max(plan.forward_scratch(tokens).bytes,
                  plan.backward_scratch(tokens, {.weight = plan.trains_weight, .bias = false}).bytes);
}

}  // namespace

LoraLinear::Part::Part(ingot::Backend& backend, const ingot::LinearPlanOptions& options, std::int64_t tokens)
    : plan(ingot::linear_plan(options)),
      saved_memory(backend, plan.saved_memory(tokens).bytes),
      saved{.memory = {saved_memory.data(), saved_memory.bytes()}} {}

LoraLinear::LoraLinear(ingot::Backend& backend, ingot::Stream& stream, const LoraOptions& options,
                       const FrozenWeight& weight)
    : down(backend, options.rank, options.in_features),
      up(backend, options.out_features, options.rank),
      backend_(&backend),
      stream_(&stream),
      base_(backend, base_options(options, std::holds_alternative<ingot::Float8WeightState>(weight)), options.tokens),
      down_part_(backend, down_options(options), options.tokens),
      up_part_(backend, up_options(options), options.tokens),
      scratch_(backend,
               std::max({scratch_bytes(base_.plan, options.tokens), scratch_bytes(down_part_.plan, options.tokens),
                         scratch_bytes(up_part_.plan, options.tokens)})),
      base_output_(backend, Dtype::bf16, options.tokens, options.out_features),
      lowered_(backend, Dtype::bf16, options.tokens, options.rank),
      grad_lowered_(backend, Dtype::bf16, options.tokens, options.rank),
      grad_through_adapter_(backend, Dtype::bf16, options.tokens, options.in_features) {
  if (const auto* tensor = std::get_if<ingot::Tensor>(&weight)) {
    weight_ = *tensor;
    weight_bytes_ = static_cast<std::size_t>(weight_.rows * weight_.cols * ingot::size_of(weight_.dtype));
    return;
  }
  weight_bytes_ = base_.plan.weight_memory().bytes;
  codes_memory_ = ingot::Buffer(backend, weight_bytes_);
  codes_ = ingot::weight_from_state(base_.plan, backend, std::get<ingot::Float8WeightState>(weight),
                                    {codes_memory_.data(), codes_memory_.bytes()}, stream);
  constants_memory_ = ingot::Buffer(backend, ingot::kLinearConstantBytes);
  scales_ = ingot::linear_constants(base_.plan, backend, {constants_memory_.data(), constants_memory_.bytes()}, stream);
}

void LoraLinear::init(training::OpRunner& ops, std::uint64_t seed, double up_deviation) {
  down.init(ops, *stream_, 1.0 / std::sqrt(static_cast<double>(down.values.view().cols)), seed);
  up.init(ops, *stream_, up_deviation, seed + 1);
}

void LoraLinear::forward(const ingot::Tensor& input, const ingot::Tensor& output) {
  const ingot::LinearRun run{*stream_};
  ingot::linear_forward(base_.plan, *backend_,
                        {.input = input,
                         .weight = weight_,
                         .output = base_output_,
                         .codes = codes_,
                         .scales = scales_,
                         .saved = &base_.saved,
                         .scratch = scratch()},
                        run);
  ingot::linear_forward(
      down_part_.plan, *backend_,
      {.input = input, .weight = down.working, .output = lowered_, .saved = &down_part_.saved, .scratch = scratch()},
      run);
  ingot::linear_forward(up_part_.plan, *backend_,
                        {.input = lowered_,
                         .weight = up.working,
                         .output = output,
                         .epilogue_inputs = {base_output_.view()},
                         .saved = &up_part_.saved,
                         .scratch = scratch()},
                        run);
}

void LoraLinear::backward_down(const ingot::Tensor& input, const ingot::Tensor& grad_input) {
  ingot::linear_backward(down_part_.plan, *backend_,
                         {.saved = &down_part_.saved,
                          .grad_output = grad_lowered_,
                          .grad_input = grad_input,
                          .grad_weight = down.grad,
                          .input = input,
                          .weight = down.working,
                          .scratch = scratch()},
                         {*stream_});
}

void LoraLinear::backward(const ingot::Tensor& input, const ingot::Tensor& grad_output,
                          const ingot::Tensor& grad_input) {
  ingot::linear_backward(up_part_.plan, *backend_,
                         {.saved = &up_part_.saved,
                          .grad_output = grad_output,
                          .grad_input = grad_lowered_,
                          .grad_weight = up.grad,
                          .input = lowered_,
                          .weight = up.working,
                          .epilogue_inputs = {base_output_.view()},
                          .scratch = scratch()},
                         {*stream_});
  if (grad_input.data == nullptr) return backward_down(input, {});
  backward_down(input, grad_through_adapter_);
  ingot::linear_backward(base_.plan, *backend_,
                         {.saved = &base_.saved,
                          .grad_output = grad_output,
                          .grad_input = grad_input,
                          .weight = weight_,
                          .codes = codes_,
                          .scales = scales_,
                          .scratch = scratch()},
                         {*stream_});
  backend_->elementwise({.in = grad_input.dtype, .pointwise = ingot::parse_pointwise("x + adapter")},
                        {.input = grad_input, .inputs = {grad_through_adapter_.view()}, .output = grad_input},
                        *stream_);
}

}  // namespace lora
