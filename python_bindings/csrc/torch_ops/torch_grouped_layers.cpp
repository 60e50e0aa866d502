// The operators of grouped linear layers that train: forward and backward of many experts with weights in high
// precision (nn/linear/grouped_linear.h). Autograd and fake kernels are Python's (ingot/torch/_grouped_layer.py).
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "ingot/nn/linear/grouped_linear.h"
#include "ingot/nn/modules/module_plans.h"
#include "ingot/nn/recipe/recipes.h"
#include "ingot/runtime/context/backend.h"
#include "torch_abi/torch_memory.h"
#include "torch_abi/torch_weight_operand.h"
#include "torch_ops/torch_module_plans.h"
#include "torch_ops/torch_module_tensors.h"
#include "torch_ops/torch_operator.h"
#include "torch_ops/torch_run.h"

namespace ingot::python {
namespace {

namespace nb = nanobind;
using namespace nb::literals;

struct GroupedPlan {
  GroupedPlan(GroupedLinearPlan of, ElementwiseSpec of_activation, bool has_gate)
      : plan(std::move(of)), saved(TorchSavedSize::of(plan)), gradients(std::move(of_activation)), gated(has_gate) {}

  // The subject of messages.
  const std::string& subject() const { return plan.rows.subject; }
  std::array<std::int64_t, 3> weight_sizes() const {
    return {plan.experts, plan.rows.shape.out_features, plan.rows.shape.in_features};
  }

  std::int64_t input_columns() const { return (gated ? 2 : 1) * plan.rows.shape.in_features; }

  GroupedLinearPlan plan;
  TorchSavedSize saved;
  ElementwiseSpec gradients;  // of the activation's inputs; without an expression where there is none
  bool gated;
};

[[noreturn]] void refuse(const GroupedPlan& of, const char* what, const std::string& why) {
  throw Error(ErrorCode::invalid_argument, TensorName{of.subject(), what}.text(), why);
}

// The first half of a gated plan's columns, or all columns; and the second half, or none.
Tensor gate_of(const GroupedPlan& of, Tensor input) {
  input.cols = of.plan.rows.shape.in_features;
  return input;
}
Tensor up_of(const GroupedPlan& of, Tensor input) {
  if (!of.gated) return {};
  input.cols = of.plan.rows.shape.in_features;
  if (input.data != nullptr) input.data = static_cast<std::byte*>(input.data) + input.cols * size_of(input.dtype);
  return input;
}

// The input of a plan, whose columns may be a gate's and those of up.
TorchMatrix input_of(const GroupedPlan& of, const TorchTensor& tensor) {
  TorchMatrix input = matrix_of(tensor, {of.subject(), "input"});
  if (input.view.cols == of.input_columns()) return input;
  refuse(of, "input",
         "has " + std::to_string(input.view.cols) + " columns, expected " + std::to_string(of.input_columns()) +
             (of.gated ? ": gate and up, which the activation joins" : ""));
}

ExpertEnds ends_of(const GroupedPlan& of, const TorchTensor& tensor, Device device) {
  const std::int32_t* const ends = int32_of(tensor, {of.subject(), "ends"}, device);
  if (tensor.elements() != of.plan.experts) {
    refuse(of, "ends",
           "has " + std::to_string(tensor.elements()) + " elements, expected one for each of " +
               std::to_string(of.plan.experts) + " experts");
  }
  return {.data = ends, .experts = of.plan.experts, .device = device};
}

void forward(TorchArgumentsOf<kGroupedLinearForward>& all) {
  const GroupedPlan& of = all.plan(plans_of<GroupedPlan>(), all.integer<"plan">());
  const GroupedLinearPlan& plan = of.plan;
  const TorchTensor& tensor = all.tensor<"input">();
  const TorchMatrix input = input_of(of, tensor);
  const Device device = input.view.device;
  const std::int64_t tokens = input.view.rows;
  TorchCall run(device, all, tokens);
  run.use(delayed_scales(all), 1, of.subject(), plan.experts);
  const LinearScales scales = run.scales(plan.rows);
  const std::int64_t keep = all.integer<"keep">();
  const bool keeps_saved = (keep & kKeepSaved) != 0;

  TorchResult output(true, sizes_with_last(tensor.sizes(), plan.rows.shape.out_features), *plan.rows.dtypes.output,
                     device);
  const bool has_codes = all.tensor<"weight_scale_inv">().given();
  TorchRegion codes = has_codes ? TorchRegion() : TorchRegion(plan.weight_memory().bytes, device);
  TorchRegion saved_memory = keeps_saved ? TorchRegion(of.saved.bytes(tokens), device) : TorchRegion();
  LinearSaved saved{.memory = saved_memory.region()};
  const std::size_t scratch_bytes =
      plan.forward_scratch(tokens, keeps_saved ? LinearPass::training : LinearPass::inference, run.observes_values());
  const StreamBlock scratch = run.stream().call_scratch(scratch_bytes);
  TorchMatrix weight;
  const auto weight_codes = [&] {
    const TensorName name{of.subject(), "weight"};
    const TorchTensor& given = all.tensor<"weight">();
    if (has_codes) {
      return float8_experts(plan, WeightReader::output, name, given, all.tensor<"weight_scale_inv">(), device);
    }
    weight = operand_of(given, name, device);
    return cast_expert_weights(plan, run.backend(),
                               {.weight = weight.view, .into = codes.region(), .scale = scales.weight}, run.run());
  };
  TorchMatrix bias;
  if (plan.bias) bias = operand_of(all.tensor<"bias">(), {of.subject(), "bias"}, device);
  const GroupedLinearForwardTensors tensors{.input = gate_of(of, input.view),
                                            .prologue_inputs = {up_of(of, input.view)},
                                            .ends = ends_of(of, all.tensor<"ends">(), device),
                                            .bias = bias.view,
                                            .output = output.view,
                                            .codes = weight_codes(),
                                            .scales = scales,
                                            .saved = keeps_saved ? &saved : nullptr,
                                            .scratch = {scratch.data(), scratch_bytes}};
  grouped_linear_forward(plan, run.backend(), tensors, run.run());

  all.result<"output">() = std::move(output.tensor);
  if (keeps_saved) all.result<"saved">() = std::move(saved_memory).publish();
  if ((keep & kKeepCodes) != 0 && !has_codes) all.result<"codes">() = std::move(codes).publish();
  run.note(all, all.result<"saved">());
  run.note(all, all.result<"codes">());
}

void backward(TorchArgumentsOf<kGroupedLinearBackward>& all) {
  const GroupedPlan& of = all.plan(plans_of<GroupedPlan>(), all.integer<"plan">());
  const GroupedLinearPlan& plan = of.plan;
  const TorchTensor& main_grad = all.tensor<"main_grad">();
  const std::int64_t bits = asked(all.integer<"wants">(), kWeight, main_grad);
  const LinearGradients wants{.input = (bits & kInput) != 0, .weight = (bits & kWeight) != 0, .bias = false};
  const TorchTensor& gradient = all.tensor<"grad_output">();
  const TorchMatrix grad_output = matrix_of(gradient, {of.subject(), "grad_output"});
  const Device device = grad_output.view.device;
  const std::int64_t tokens = grad_output.view.rows;
  TorchCall run(device, all, tokens);
  run.use(delayed_scales(all), 1, of.subject(), plan.experts);
  const ExpertEnds ends = ends_of(of, all.tensor<"ends">(), device);

  TorchRegion saved_memory, codes;
  if (wants.weight) {
    saved_memory = left_by_forward(all.tensor<"saved">(), of.saved.bytes(tokens), {of.subject(), "saved"}, device);
  }
  const LinearSaved saved{.memory = saved_memory.region(), .plan = plan.identity, .tokens = tokens, .kept = true};
  const Dtype dtype = plan.rows.dtypes.input;
  TorchResult grad_input(wants.input, sizes_with_last(gradient.sizes(), of.input_columns()), dtype, device);
  // Of the activation's value.
  const bool activates = wants.input && of.gradients.pointwise;
  const TorchResult grad_values(activates, sizes_with_last(gradient.sizes(), plan.rows.shape.in_features), dtype,
                                device);
  TorchResult grad_weight(wants.weight && !main_grad.given(), of.weight_sizes(), *plan.rows.dtypes.weight, device);
  TorchResult grad_bias((bits & kBias) != 0, std::array{plan.experts, plan.rows.shape.out_features}, plan.bias_dtype(),
                        device);
  GroupedLinearBackwardTensors tensors{.saved = &saved,
                                       .ends = ends,
                                       .grad_output = grad_output.view,
                                       .grad_input = activates ? grad_values.view : grad_input.view,
                                       .grad_weight = grad_weight.view,
                                       .grad_bias = grad_bias.view,
                                       .accumulate = wants.weight && main_grad.given(),
                                       .scales = run.scales(plan.rows)};
  if (tensors.accumulate) tensors.grad_weight = main_grad_of(plan.rows, main_grad, device);
  TorchMatrix weight;
  if (wants.input && all.tensor<"weight_scale_inv">().given()) {
    tensors.codes = float8_experts(plan, WeightReader::grad_input, {of.subject(), "weight"}, all.tensor<"weight">(),
                                   all.tensor<"weight_scale_inv">(), device);
  } else if (wants.input && plan.weight_again.any) {
    weight = operand_of(all.tensor<"weight">(), {of.subject(), "weight"}, device);
    tensors.weight = weight.view;
  } else if (wants.input) {
    codes = left_by_forward(all.tensor<"codes">(), plan.weight_memory().bytes, {of.subject(), "codes"}, device);
    tensors.codes = expert_weight_codes(plan, codes.region(), device);
  }
  const std::size_t scratch_bytes = grouped_linear_backward_scratch(plan, tensors);
  const StreamBlock scratch = run.stream().call_scratch(scratch_bytes);
  tensors.scratch = {scratch.data(), scratch_bytes};
  grouped_linear_backward(plan, run.backend(), tensors, run.run());
  if (activates) {
    const TorchMatrix input = input_of(of, all.tensor<"input">());
    run.backend().elementwise(
        of.gradients,
        {.input = gate_of(of, input.view),
         .inputs = activation_gradient_inputs(of.gradients, up_of(of, input.view), grad_values.view),
         .output = gate_of(of, grad_input.view),
         .second = up_of(of, grad_input.view)},
        run.stream());
  }

  all.result<"grad_input">() = std::move(grad_input.tensor);
  all.result<"grad_weight">() = std::move(grad_weight.tensor);
  all.result<"grad_bias">() = std::move(grad_bias.tensor);
}

constexpr std::array kGroupedLayerOperators{kTorchOperator<kGroupedLinearForward, forward>,
                                            kTorchOperator<kGroupedLinearBackward, backward>};

// Of an MLP, which reads the activation and derives it.
MlpPlan plan_of_activation(const std::string& activation, std::int64_t out_features, std::int64_t in_features,
                           const LinearDtypes& dtypes) {
  const std::string subject = "grouped linear \"" + placeholder(0) + "\"";
  try {
    return mlp_plan({.shape = {.features = out_features, .hidden = in_features},
                     .dtypes = dtypes,
                     .activation = activation,
                     .subject = subject});
  } catch (const Error& error) {
    const std::string what = error.what();
    if (what.starts_with(subject)) throw;
    throw Error(error.code(), subject + " activation", what);
  }
}

// Returns (number, saved_constant, saved_per_128_tokens, weight_bytes, backward reads weight, takes gate and up).
nb::tuple add_plan(const std::string& recipe_name, const std::array<std::int64_t, 3>& sizes, const std::string& input,
                   const std::string& weight, bool grad_weight, bool weight_again, bool fast_gradients,
                   const std::string& activation, bool bias) {
  const auto [experts, out_features, in_features] = sizes;
  const LinearConfig config = config_of_experts(recipe_name, weight_again, fast_gradients);
  const LinearDtypes dtypes = linear_dtypes(input, weight, std::nullopt);
  MlpPlan mlp;
  if (!activation.empty()) {
    // Of the input's dtype alone: the MLP's own GEMMs, in high precision, take no weight in another.
    mlp = plan_of_activation(activation, out_features, in_features, linear_dtypes(input, input, std::nullopt));
  }
  GroupedPlan plan(
      grouped_linear_plan({.name = placeholder(0),
                           .config = config,
                           .experts = experts,
                           .shape = {.in_features = in_features, .out_features = out_features, .bias = bias},
                           .dtypes = dtypes,
                           .grad_weight = grad_weight,
                           .fusion = mlp.down.fusion}),
      activation.empty() ? ElementwiseSpec{} : mlp.activation_gradients(), mlp.gated);
  const auto [constant, per_unit] = plan.saved;
  const std::size_t weight_bytes = plan.plan.weight_memory().bytes;
  const bool reads_weight = plan.plan.weight_again.any;
  const std::uint64_t identity = plan.plan.identity;
  const bool gated = plan.gated;
  const std::int64_t number =
      plans_of<GroupedPlan>().add(identity, std::move(plan), {sizes_text(in_features, out_features)});
  return nb::make_tuple(number, constant, per_unit, weight_bytes, reads_weight, gated);
}

const TorchFamily kGroupedLayerFamily(kGroupedLayerOperators, [](nb::module_& module) {
  module.def("torch_grouped_plan", &add_plan, "recipe"_a, "sizes"_a, "input"_a, "weight"_a, "grad_weight"_a,
             "weight_again"_a, "fast_gradients"_a, "activation"_a, "bias"_a);
  bind_names(module, "grouped", plans_of<GroupedPlan>());
});

}  // namespace
}  // namespace ingot::python
