#include "ingot/nn/modules/module_plans.h"
#include <fmt/format.h>
#include <algorithm>
#include <bit>
#include "ingot/codegen/types/spec_hash.h"
#include "ingot/nn/linear/memory_places.h"
#include "ingot/nn/linear/tensor_checks.h"

namespace ingot {
namespace {

// In the same order of operations as the norm kernels (norm_spec.h), so that the values have the same bits.
Pointwise norm_expression(const NormOptions& norm) {
  if (norm.zero_centred) {
    return parse_pointwise(norm.kind == NormKind::rms ? "x * rstd[row] * (gamma[col] + 1)"
                                                      : "(x - mean[row]) * rstd[row] * (gamma[col] + 1) + beta[col]");
  }
  if (norm.kind == NormKind::rms) return parse_pointwise(norm.affine ? "x * rstd[row] * gamma[col]" : "x * rstd[row]");
  return parse_pointwise(norm.affine ? "(x - mean[row]) * rstd[row] * gamma[col] + beta[col]"
                                     : "(x - mean[row]) * rstd[row]");
}

bool casts_input(const LinearConfig& config) { return config.output.a || config.grad_weight.b; }

void place_statistics(const NormLinearPlan& plan, std::int64_t tokens, MemoryPlaces& places, TensorPlace& mean,
                      TensorPlace& rstd) {
  if (plan.has_mean()) places.floats(mean, tokens);
  if (plan.norm) places.floats(rstd, tokens);
}

std::uint64_t identity_of(const NormLinearPlan& plan) {
  if (!plan.norm) return plan.linear.identity;
  const auto& [kind, affine, eps, zero_centred] = *plan.norm;
  return mix(plan.linear.identity + mix(pack(kind, affine, zero_centred, 1) << 32 | std::bit_cast<std::uint32_t>(eps)));
}

}  // namespace

std::size_t NormLinearSavedMemory::bytes_of_parts() const {
  return mean.bytes() + rstd.bytes() + values.bytes() + layer.bytes_of_parts();
}

NormLinearPlan norm_linear_plan(const NormLinearPlanOptions& options) {
  NormLinearPlan plan{.subject = options.subject, .norm = options.norm};
  if (plan.subject.empty()) plan.subject = fmt::format("norm linear \"{}\"", options.linear.name);
  LinearPlanOptions linear = options.linear;
  if (plan.norm) {
    if (linear.fusion.prologue) {
      refuse_argument(fmt::format("{} fusion", plan.subject).c_str(),
                      "has a prologue, but the norm is the prologue of this layer: leave it empty");
    }
    if (plan.norm->zero_centred && !plan.norm->affine) {
      refuse_argument(fmt::format("{} zero_centred", plan.subject).c_str(),
                      "is set, but the norm is made without gamma: set affine too");
    }
    // The norm's own values have a plain gamma; another is an expression of the layer, in high precision too.
    plan.writes_values = !casts_input(linear.config) && !plan.norm->zero_centred;
    if (!plan.writes_values) linear.fusion.prologue = norm_expression(*plan.norm);
  }
  plan.linear = linear_plan(linear);
  plan.identity = identity_of(plan);
  return plan;
}

NormLinearSavedMemory NormLinearPlan::saved_memory(std::int64_t tokens) const {
  NormLinearSavedMemory memory{.layer = linear.saved_memory(tokens)};
  MemoryPlaces places;
  place_statistics(*this, tokens, places, memory.mean, memory.rstd);
  if (keeps_values()) places.values(memory.values, linear.dtypes.input, tokens, linear.shape.in_features);
  memory.layer_begin = places.region(memory.layer.bytes);
  memory.bytes = places.bytes();
  return memory;
}

NormLinearForwardScratch NormLinearPlan::forward_scratch(std::int64_t tokens, LinearPass pass, bool observed) const {
  if (pass == LinearPass::recompute && linear.recomputes_output()) pass = LinearPass::training;
  NormLinearForwardScratch scratch{.layer_bytes = linear.forward_scratch(tokens, pass, observed).bytes};
  MemoryPlaces places;
  const bool keeps = pass != LinearPass::inference;
  if (!keeps && !writes_values) place_statistics(*this, tokens, places, scratch.mean, scratch.rstd);
  if (writes_values && !(keeps && keeps_values())) {
    places.values(scratch.values, linear.dtypes.input, tokens, linear.shape.in_features);
  }
  scratch.layer_begin = places.region(scratch.layer_bytes);
  scratch.bytes = places.bytes();
  return scratch;
}

NormLinearBackwardScratch NormLinearPlan::backward_scratch(std::int64_t tokens, const LinearGradients& wants,
                                                           bool observed) const {
  NormLinearBackwardScratch scratch{.layer_bytes = linear.backward_scratch(tokens, wants, observed).bytes};
  MemoryPlaces places;
  if (norm && wants.input) {
    places.values(scratch.grad_values, linear.dtypes.input, tokens, linear.shape.in_features);
  }
  scratch.layer_begin = places.region(scratch.layer_bytes);
  scratch.bytes = places.bytes();
  return scratch;
}

NormLinearMemory NormLinearPlan::memory(std::int64_t tokens) const {
  return {.weight = linear.weight_memory(),
          .saved = saved_memory(tokens),
          .forward = forward_scratch(tokens),
          .backward = backward_scratch(tokens, {.bias = linear.shape.bias})};
}

namespace {

struct Activation {
  Pointwise expression;
  bool gated = false;
};

Activation parse_activation(const MlpPlan& plan, const std::string& text) {
  Activation made{.expression = parse_pointwise(text)};
  const auto inputs = made.expression.inputs();
  made.gated = inputs.size() == 1 && inputs[0] == PointwiseInput{.name = "up", .kind = PointwiseInput::Kind::matrix};
  if (made.expression.uses_x() && (made.gated || inputs.empty())) return made;
  throw Error(
      ErrorCode::invalid_spec, fmt::format("{} activation", plan.subject),
      fmt::format("\"{}\" must be an expression of x, such as gelu(x), or of x, the gate, and of the matrix up, "
                  "such as silu(x) * up",
                  text));
}

void check_sizes(const MlpPlan& plan) {
  const auto check = [&](const char* what, std::int64_t size) {
    if (size >= 0) return;
    refuse_argument(fmt::format("{} {}", plan.subject, what).c_str(),
                    fmt::format("is {}, but must be 0 or more", size));
  };
  check("features", plan.shape.features);
  check("hidden", plan.shape.hidden);
}

LinearPlanOptions layer_options(const MlpPlanOptions& options, const char* layer, const LinearShape& shape) {
  return {.name = fmt::format("{}.{}", options.name, layer),
          .config = options.config,
          .shape = shape,
          .dtypes = options.dtypes,
          .fusion = {.fast_math = options.fast_math},
          .grad_weight = options.grad_weight,
          .subject = options.layer_subject};
}

}  // namespace

std::size_t MlpSavedMemory::bytes_of_parts() const {
  return hidden.bytes() + up.bytes_of_parts() + down.bytes_of_parts();
}

MlpPlan mlp_plan(const MlpPlanOptions& options) {
  MlpPlan plan{.name = options.name,
               .subject = options.subject.empty() ? fmt::format("MLP \"{}\"", options.name) : options.subject,
               .shape = options.shape,
               .fast_math = options.fast_math};
  const Activation activation = parse_activation(plan, options.activation);
  check_sizes(plan);
  plan.gated = activation.gated;
  plan.by_x = backward(activation.expression, "x");
  if (plan.gated) plan.by_up = backward(activation.expression, "up");
  const auto [features, hidden, bias] = plan.shape;
  LinearPlanOptions up = layer_options(options, plan.gated ? "gate_up" : "up", {features, plan.hidden_columns(), bias});
  up.dtypes.output.reset();
  plan.up = norm_linear_plan({.linear = up, .norm = options.norm, .subject = plan.subject});
  LinearPlanOptions down = layer_options(options, "down", {hidden, features, bias});
  down.fusion.prologue = activation.expression;
  plan.down = linear_plan(down);
  plan.identity = mix(mix(plan.up.identity + 1) + plan.down.identity);
  return plan;
}

PointwiseTensors activation_gradient_inputs(const ElementwiseSpec& gradients, const Tensor& up,
                                            const Tensor& grad_values) {
  PointwiseTensors inputs{};
  std::ranges::transform(ElementwiseInputs(gradients).all(), inputs.begin(),
                         [&](const PointwiseInput* input) { return input->name == "up" ? up : grad_values; });
  return inputs;
}

MlpSavedMemory MlpPlan::saved_memory(std::int64_t tokens) const {
  MlpSavedMemory memory{.up = up.saved_memory(tokens), .down = down.saved_memory(tokens)};
  MemoryPlaces places;
  places.values(memory.hidden, up.linear.dtypes.input, tokens, hidden_columns());
  memory.up_begin = places.region(memory.up.bytes);
  memory.down_begin = places.region(memory.down.bytes);
  memory.bytes = places.bytes();
  return memory;
}

MlpForwardScratch MlpPlan::forward_scratch(std::int64_t tokens, LinearPass pass, bool observed) const {
  const bool ends_early = pass == LinearPass::recompute;  // the output is there already
  MlpForwardScratch scratch{
      .parts_bytes = std::max(up.forward_scratch(tokens, ends_early ? LinearPass::training : pass, observed).bytes,
                              down.forward_scratch(tokens, pass, observed).bytes)};
  MemoryPlaces places;
  if (pass == LinearPass::inference) places.values(scratch.hidden, up.linear.dtypes.input, tokens, hidden_columns());
  scratch.parts_begin = places.region(scratch.parts_bytes);
  scratch.bytes = places.bytes();
  return scratch;
}

MlpBackwardScratch MlpPlan::backward_scratch(std::int64_t tokens, const MlpGradients& wants, bool observed) const {
  MlpBackwardScratch scratch{.parts_bytes = down.backward_scratch(tokens, wants.of_down(), observed).bytes};
  MemoryPlaces places;
  if (wants.reaches_up()) {
    scratch.parts_bytes = std::max(scratch.parts_bytes, up.backward_scratch(tokens, wants.of_up(), observed).bytes);
    places.values(scratch.grad_activation, up.linear.dtypes.input, tokens, shape.hidden);
    places.values(scratch.grad_hidden, up.linear.dtypes.input, tokens, hidden_columns());
    if (up.linear.takes_grad_output_amax(wants.of_up())) places.floats(scratch.grad_amax, 1);
  }
  scratch.parts_begin = places.region(scratch.parts_bytes);
  scratch.bytes = places.bytes();
  return scratch;
}

MlpMemory MlpPlan::memory(std::int64_t tokens) const {
  return {.up_weight = up.linear.weight_memory(),
          .down_weight = down.weight_memory(),
          .saved = saved_memory(tokens),
          .forward = forward_scratch(tokens),
          .backward = backward_scratch(tokens, {.up_bias = shape.bias, .down_bias = shape.bias})};
}

}  // namespace ingot
