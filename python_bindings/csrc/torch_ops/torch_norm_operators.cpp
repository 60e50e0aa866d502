// The operators of a norm and the linear layer after it (nn/modules/norm_linear_functions.h), and of a linear layer
// with an activation, which is one without a norm.
#include <array>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "ingot/nn/modules/norm_linear_functions.h"
#include "module.h"
#include "torch_ops/torch_module_plans.h"
#include "torch_ops/torch_module_tensors.h"

namespace ingot::python {
namespace {

namespace nb = nanobind;
using namespace nb::literals;

using NormLinearModule = TorchModule<NormLinearPlan>;

TorchPlanTable<NormLinearModule>& plans() {
  static auto* const plans = new TorchPlanTable<NormLinearModule>;  // never destroyed: threads may call until the end
  return *plans;
}

// Returns output, and what backward needs. gamma, beta and bias are read only if the layer has them.
void forward(TorchArgumentsOf<kNormLinearForward>& all) {
  const NormLinearModule& of = all.plan(plans(), all.integer<"plan">());
  const std::int64_t keep = all.integer<"keep">();
  const NormLinearPlan& plan = of.plan;
  const LinearPlan& layer = plan.linear;
  const TorchMatrix input = matrix_of(all.tensor<"input">(), {plan.subject, "input"});
  TorchCall call(input.view.device, all, input.view.rows);
  call.use(delayed_scales(all), 1, plan.subject);
  const Device device = call.device();
  const std::int64_t tokens = input.view.rows;
  const bool keeps = (keep & kKeepSaved) != 0;

  const NormOperands norm(plan, all.tensor<"gamma">(), all.tensor<"beta">(), device);
  const LayerOperands operands(layer, all.tensor<"weight">(), all.tensor<"bias">(), device);
  TorchResult output(true, sizes_with_last(all.tensor<"input">().sizes(), layer.shape.out_features),
                     *layer.dtypes.output, device);
  TorchKept kept(of.kept(tokens), keeps, (keep & kKeepCodes) != 0, device);
  LinearSaved saved{.memory = kept.saved()};
  const LinearPass pass = keeps ? LinearPass::training : LinearPass::inference;
  const TorchRegion scratch(plan.forward_scratch(tokens, pass, call.observes_values()).bytes, device);
  NormLinearForwardTensors tensors{.input = input.view,
                                   .gamma = norm.gamma.view,
                                   .beta = norm.beta.view,
                                   .weight = operands.weight.view,
                                   .bias = operands.bias.view,
                                   .output = output.view,
                                   .scales = call.scales(layer),
                                   .saved = keeps ? &saved : nullptr,
                                   .scratch = scratch.region()};
  TorchSide side(call, faster_with_side(layer, tokens) && of.weight_bytes > 0 && !call.scales_start());
  if (of.weight_bytes > 0) cast_weight_beside(layer, call.backend(), kept.codes(), side, tensors);
  norm_linear_forward(plan, call.backend(), tensors, call.run());
  all.result<"output">() = std::move(output.tensor);
  all.result<"saved">() = std::move(kept).publish();
  call.note(all, all.result<"saved">());
}

// Returns the gradients of input, gamma, beta, weight and bias; those that are not wanted are none, and so is that of
// the weight where it is added to a main_grad. input, gamma, weight and output are read only if the plan reads them
// again.
void backward(TorchArgumentsOf<kNormLinearBackward>& all) {
  const TorchTensor& main_grad = all.tensor<"main_grad">();
  const NormLinearModule& of = all.plan(plans(), all.integer<"plan">());
  const std::int64_t bits = asked(all.integer<"wants">(), kWeight, main_grad);
  const NormLinearPlan& plan = of.plan;
  const LinearPlan& layer = plan.linear;
  const LinearGradients wants{
      .input = (bits & (kInput | kGamma)) != 0, .weight = (bits & kWeight) != 0, .bias = (bits & kBias) != 0};
  const TorchMatrix grad_output = matrix_of(all.tensor<"grad_output">(), {plan.subject, "grad_output"});
  TorchCall call(grad_output.view.device, all, grad_output.view.rows);
  call.use(delayed_scales(all), 1, plan.subject);
  const Device device = call.device();
  const std::int64_t tokens = grad_output.view.rows;

  const TorchKept kept(std::move(all.tensor<"saved">()), of.kept(tokens),
                       wants.input && !layer.grad_input_reads_weight() && !of.casts_whole_weights_again,
                       {plan.subject, "saved"}, device);
  const LinearSaved saved{.memory = kept.saved(), .plan = plan.identity, .tokens = tokens, .kept = true};
  NormGradients norm(plan, wants.input, all.tensor<"grad_output">(), all.tensor<"gamma">(), device);
  LayerGradients gradients(layer, wants.weight, wants.bias, device, main_grad);
  NormLinearBackwardTensors tensors{.saved = &saved,
                                    .grad_output = grad_output.view,
                                    .grad_input = norm.input.view,
                                    .grad_gamma = norm.gamma.view,
                                    .grad_beta = norm.beta.view,
                                    .grad_weight = gradients.weight.view,
                                    .grad_bias = gradients.bias.view,
                                    .accumulate = wants.weight && main_grad.given(),
                                    .scales = call.scales(layer)};
  TorchMatrix input, gamma, output;
  if (plan.backward_reads_input(wants)) {
    input = operand_of(all.tensor<"input">(), {plan.subject, "input"}, device);
    tensors.input = input.view;
    if (plan.has_gamma()) {
      gamma = vector_in(all.tensor<"gamma">(), layer.dtypes.input, {plan.subject, "gamma"}, device);
      tensors.gamma = gamma.view;
    }
  }
  if (layer.gradient.of_output()) {
    output = operand_of(all.tensor<"output">(), {plan.subject, "output"}, device);
    tensors.output = output.view;
  }
  const WeightOfBackward weight(layer, wants.input, all.tensor<"weight">(), kept.codes(), of.casts_whole_weights_again,
                                call);
  tensors.weight = weight.matrix.view;
  tensors.codes = weight.codes;
  const TorchRegion scratch(plan.backward_scratch(tokens, wants, call.observes_values()).bytes, device);
  tensors.scratch = scratch.region();
  TorchSide side(call, faster_with_side(layer, tokens) && wants.input && wants.weight,
                 [&] { return multiplies_together(plan, call.backend(), tensors); });
  norm_linear_backward(plan, call.backend(), tensors, call.run(side.stream()));
  if ((bits & kInput) != 0) all.result<"grad_input">() = std::move(norm.input.tensor);
  all.result<"grad_gamma">() = std::move(norm.gamma.tensor);
  all.result<"grad_beta">() = std::move(norm.beta.tensor);
  all.result<"grad_weight">() = std::move(gradients.weight.tensor);
  all.result<"grad_bias">() = std::move(gradients.bias.tensor);
}

constexpr std::array kOperators{kTorchOperator<kNormLinearForward, forward>,
                                kTorchOperator<kNormLinearBackward, backward>};

const TorchFamily kFamily(kOperators, [](nb::module_& module) {
  module.def(
      "torch_norm_linear_plan",
      [](const std::string& subject, const std::string& recipe_name, std::int64_t in_features,
         std::int64_t out_features, const DtypeTexts& dtypes, bool grad_weight, const std::optional<NormText>& norm,
         const std::string& activation, bool fast_math, bool weight_again) {
        const NormLinearPlan plan = norm_linear_plan(
            {.linear = {.name = placeholder(0),
                        .config = config_of(recipe_name, weight_again),
                        .shape = {.in_features = in_features,
                                  .out_features = out_features,
                                  .bias = dtypes[2].has_value()},
                        .dtypes = linear_dtypes(dtypes),
                        .fusion = {.epilogue = activation_of(subject, activation), .fast_math = fast_math},
                        .grad_weight = grad_weight,
                        .subject = subject},
             .norm = norm_options(norm),
             .subject = subject});
        const LinearPlan& layer = plan.linear;
        return add_module(plans(), plan.identity,
                          NormLinearModule(plan, layer.weight_memory().bytes, casts_whole_again(layer, weight_again)),
                          {sizes_text(in_features, out_features)},
                          {.input_for_input = plan.norm.has_value(),
                           .input_for_weight = plan.backward_reads_input({.input = false, .bias = false}),
                           .weight = layer.grad_input_reads_weight(),
                           .output = layer.gradient.of_output()});
      },
      "subject"_a, "recipe"_a, "in_features"_a, "out_features"_a, "dtypes"_a, "grad_weight"_a, "norm"_a.none(),
      "activation"_a, "fast_math"_a, "weight_again"_a);
  bind_names(module, "torch_name_norm_linear", plans());
});

}  // namespace
}  // namespace ingot::python
