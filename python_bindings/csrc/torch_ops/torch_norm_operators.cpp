// The operators of a norm and the linear layer after it (nn/modules/norm_linear_functions.h), and of a linear layer
// with an activation, which is one without a norm.
#include <array>
#include <utility>

#include "ingot/nn/modules/norm_linear_functions.h"
#include "module.h"
#include "torch_ops/torch_module_plans.h"
#include "torch_ops/torch_module_tensors.h"

namespace ingot::python {
namespace {

namespace nb = nanobind;

using NormLinearModule = TorchModule<NormLinearPlan>;

// Returns output, and what backward needs. gamma, beta and bias are read only if the layer has them.
void forward(TorchArgumentsOf<kNormLinearForward>& all) {
  const NormLinearModule& of = all.plan(plans_of<NormLinearModule>(), all.integer<"plan">());
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
  const TorchWeight weight{&all.tensor<"weight">(), &all.tensor<"weight_scale_inv">()};
  const LayerOperands operands(layer, weight, all.tensor<"bias">(), call);
  TorchResult output(true, sizes_with_last(all.tensor<"input">().sizes(), layer.shape.out_features),
                     *layer.dtypes.output, device);
  TorchKept kept(of.kept(tokens, {&weight, 1}), keeps, (keep & kKeepCodes) != 0, device);
  LinearSaved saved{.memory = kept.saved()};
  const LinearPass pass = keeps ? LinearPass::training : LinearPass::inference;
  const TorchRegion scratch(plan.forward_scratch(tokens, pass, call.observes_values()).bytes, device);
  NormLinearForwardTensors tensors{.input = input.view,
                                   .gamma = norm.gamma.view,
                                   .beta = norm.beta.view,
                                   .weight = operands.weight.view,
                                   .bias = operands.bias.view,
                                   .output = output.view,
                                   .codes = operands.codes,
                                   .scales = call.scales(layer),
                                   .saved = keeps ? &saved : nullptr,
                                   .scratch = scratch.region()};
  const bool casts = kept.codes().bytes > 0;
  TorchSide side(call, faster_with_side(layer, tokens) && casts && !call.scales_start());
  if (casts) cast_weight_beside(layer, call.backend(), kept.codes(), side, tensors);
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
  const NormLinearModule& of = all.plan(plans_of<NormLinearModule>(), all.integer<"plan">());
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

  const TorchWeight given_weight{&all.tensor<"weight">(), &all.tensor<"weight_scale_inv">()};
  const TorchKept kept(std::move(all.tensor<"saved">()), of.kept(tokens, {&given_weight, 1}),
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
  const WeightOfBackward weight(layer, wants.input, given_weight, kept.codes(), of.casts_whole_weights_again, call);
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

constexpr std::array kNormOperators{kTorchOperator<kNormLinearForward, forward>,
                                    kTorchOperator<kNormLinearBackward, backward>};

nb::tuple add_norm_plan(const ModuleText& module) {
  LinearPlanOptions options = module.options(0);
  options.fusion = {.epilogue = activation_of(module.subject, module.activation), .fast_math = module.fast_math};
  options.subject = module.subject;
  const NormLinearPlan plan =
      norm_linear_plan({.linear = options, .norm = module.norm_options(), .subject = module.subject});
  const LinearPlan& layer = plan.linear;
  return add_module(
      plan.identity,
      NormLinearModule(plan, {layer.weight_memory().bytes}, casts_whole_again(layer, module.weight_again)),
      {module.sizes(0)},
      {.input_for_input = plan.norm.has_value(),
       .input_for_weight = plan.backward_reads_input({.input = false, .bias = false}),
       .weight = layer.grad_input_reads_weight(),
       .output = layer.gradient.of_output()});
}

const TorchFamily kNormFamily(kNormOperators, [](nb::module_& module) {
  bind_module(module, "norm_linear", plans_of<NormLinearModule>(), &add_norm_plan);
});

}  // namespace
}  // namespace ingot::python
