// The operators of a linear layer after a gate: (silu(gate) * up) @ weight^T + bias, or with another activation of
// both. They are the second half of an MLP whose gate and up are separate layers; torch_shared_operators.cpp has
// the first. The cast of the layer's input computes the activation, as within a whole MLP (nn/modules/mlp_functions.h).
#include <algorithm>
#include <array>
#include <utility>

#include "ingot/nn/modules/module_plans.h"
#include "module.h"
#include "torch_ops/torch_module_plans.h"
#include "torch_ops/torch_module_tensors.h"

namespace ingot::python {
namespace {

namespace nb = nanobind;

struct GatedLinearPlan {
  LinearPlan linear{};          // with the activation as its prologue, x being the gate
  ElementwiseSpec gradients{};  // of gate and up, through the activation

  LinearSavedMemory saved_memory(std::int64_t tokens) const { return linear.saved_memory(tokens); }
};

using GatedModule = TorchModule<GatedLinearPlan>;

// Gate and up, which have one shape and dtype.
struct GateOperands {
  GateOperands(const LinearPlan& plan, const TorchTensor& of_gate, const TorchTensor& of_up, Device device)
      : gate(operand_of(of_gate, {plan.subject, "gate"}, device)), up(operand_of(of_up, {plan.subject, "up"}, device)) {
    if (std::ranges::equal(of_gate.sizes(), of_up.sizes()) && gate.view.dtype == up.view.dtype) return;
    throw Error(ErrorCode::invalid_argument, TensorName{plan.subject, "up"}.text(),
                "must have the shape and dtype of the gate: give what two layers of one size return");
  }

  TorchMatrix gate;
  TorchMatrix up;
};

// Returns output, and what backward needs in addition to gate and up.
void forward(TorchArgumentsOf<kGatedLinearForward>& all) {
  const TorchTensor& gate = all.tensor<"gate">();
  const GatedModule& of = all.plan(plans_of<GatedModule>(), all.integer<"plan">());
  const std::int64_t keep = all.integer<"keep">();
  const LinearPlan& plan = of.plan.linear;
  const Device device = gate.device().value_or(Device{});
  const GateOperands input(plan, gate, all.tensor<"up">(), device);
  const std::int64_t tokens = input.gate.view.rows;
  TorchCall call(device, all, tokens);
  call.use(delayed_scales(all), 1, plan.subject);
  const bool keeps = (keep & kKeepSaved) != 0;

  const TorchWeight weight{&all.tensor<"weight">(), &all.tensor<"weight_scale_inv">()};
  const LayerOperands operands(plan, weight, all.tensor<"bias">(), call);
  TorchResult output(true, sizes_with_last(gate.sizes(), plan.shape.out_features), *plan.dtypes.output, device);
  TorchKept kept(of.kept(tokens, {&weight, 1}), keeps, (keep & kKeepCodes) != 0, device);
  LinearSaved saved{.memory = kept.saved()};
  const LinearPass pass = keeps ? LinearPass::training : LinearPass::inference;
  const TorchRegion scratch(plan.forward_scratch(tokens, pass, call.observes_values()).bytes, device);
  LinearForwardTensors tensors{.input = input.gate.view,
                               .weight = operands.weight.view,
                               .bias = operands.bias.view,
                               .output = output.view,
                               .prologue_inputs = {input.up.view},
                               .codes = operands.codes,
                               .scales = call.scales(plan),
                               .saved = keeps ? &saved : nullptr,
                               .scratch = scratch.region()};
  if (kept.codes().bytes > 0) tensors.weight_into = kept.codes();
  linear_forward(plan, call.backend(), tensors, call.run());
  all.result<"output">() = std::move(output.tensor);
  all.result<"saved">() = std::move(kept).publish();
  call.note(all, all.result<"saved">());
}

// The gradients of gate and up through the activation, those that are wanted, in one pass.
void flow_back(const ElementwiseSpec& both, const GateOperands& input, const TorchResult& grad_values,
               std::int64_t wants, TorchCall& call, TorchArgumentsOf<kGatedLinearBackward>& all) {
  const bool of_gate = (wants & kInput) != 0;
  const bool of_up = (wants & kUp) != 0;
  if (!of_gate && !of_up) return;
  const auto grad = [&](bool wanted) {
    return TorchResult(wanted, grad_values.tensor.sizes(), input.gate.view.dtype, call.device());
  };
  TorchResult grad_gate = grad(of_gate);
  TorchResult grad_up = grad(of_up);
  ElementwiseSpec spec = both;
  if (!of_gate) spec.pointwise = both.second;
  if (!of_gate || !of_up) spec.second = {};
  call.backend().elementwise(spec,
                             {.input = input.gate.view,
                              .inputs = activation_gradient_inputs(spec, input.up.view, grad_values.view),
                              .output = of_gate ? grad_gate.view : grad_up.view,
                              .second = of_gate && of_up ? grad_up.view : Tensor{}},
                             call.stream());
  all.result<"grad_gate">() = std::move(grad_gate.tensor);
  all.result<"grad_up">() = std::move(grad_up.tensor);
}

// Returns the gradients of gate, up, weight and bias; those that are not wanted are none, and so is that of the weight
// where it is added to a main_grad.
void backward(TorchArgumentsOf<kGatedLinearBackward>& all) {
  const TorchTensor& main_grad = all.tensor<"main_grad">();
  const GatedModule& of = all.plan(plans_of<GatedModule>(), all.integer<"plan">());
  const std::int64_t bits = asked(all.integer<"wants">(), kWeight, main_grad);
  const LinearPlan& plan = of.plan.linear;
  const LinearGradients wants{
      .input = (bits & (kInput | kUp)) != 0, .weight = (bits & kWeight) != 0, .bias = (bits & kBias) != 0};
  const TorchMatrix grad_output = matrix_of(all.tensor<"grad_output">(), {plan.subject, "grad_output"});
  const Device device = grad_output.view.device;
  const std::int64_t tokens = grad_output.view.rows;
  TorchCall call(device, all, tokens);
  call.use(delayed_scales(all), 1, plan.subject);
  const GateOperands input(plan, all.tensor<"gate">(), all.tensor<"up">(), device);

  const TorchWeight given_weight{&all.tensor<"weight">(), &all.tensor<"weight_scale_inv">()};
  const TorchKept kept(std::move(all.tensor<"saved">()), of.kept(tokens, {&given_weight, 1}),
                       wants.input && !plan.grad_input_reads_weight() && !of.casts_whole_weights_again,
                       {plan.subject, "saved"}, device);
  const LinearSaved saved{.memory = kept.saved(), .plan = plan.identity, .tokens = tokens, .kept = true};
  const TorchResult grad_values(wants.input, all.tensor<"gate">().sizes(), plan.dtypes.input, device);
  LayerGradients gradients(plan, wants.weight, wants.bias, device, main_grad);
  const WeightOfBackward weight(plan, wants.input, given_weight, kept.codes(), of.casts_whole_weights_again, call);
  const TorchRegion scratch(plan.backward_scratch(tokens, wants, call.observes_values()).bytes, device);
  linear_backward(plan, call.backend(),
                  {.saved = &saved,
                   .grad_output = grad_output.view,
                   .grad_input = grad_values.view,
                   .grad_weight = gradients.weight.view,
                   .grad_bias = gradients.bias.view,
                   .accumulate = wants.weight && main_grad.given(),
                   .input = input.gate.view,
                   .weight = weight.matrix.view,
                   .prologue_inputs = {input.up.view},
                   .codes = weight.codes,
                   .scales = call.scales(plan),
                   .scratch = scratch.region()},
                  call.run());
  flow_back(of.plan.gradients, input, grad_values, bits, call, all);
  all.result<"grad_weight">() = std::move(gradients.weight.tensor);
  all.result<"grad_bias">() = std::move(gradients.bias.tensor);
}

constexpr std::array kGatedOperators{kTorchOperator<kGatedLinearForward, forward>,
                                     kTorchOperator<kGatedLinearBackward, backward>};

nb::tuple add_gated_plan(const ModuleText& module) {
  LinearPlanOptions options = module.options(0);
  const MlpPlan mlp = mlp_plan({.name = options.name,
                                .config = options.config,
                                .shape = {.features = options.shape.out_features,
                                          .hidden = options.shape.in_features,
                                          .bias = options.shape.bias},
                                .dtypes = options.dtypes,
                                .activation = module.activation,
                                .fast_math = module.fast_math,
                                .grad_weight = module.grad_weight,
                                .subject = module.subject});  // it reads the activation, and derives it
  options.fusion = mlp.down.fusion;
  options.subject = module.subject;
  const LinearPlan layer = linear_plan(options);
  return add_module(layer.identity,
                    GatedModule({.linear = layer, .gradients = mlp.activation_gradients()},
                                {layer.weight_memory().bytes}, casts_whole_again(layer, module.weight_again)),
                    {module.sizes(0)}, {.input_for_input = true, .weight = layer.grad_input_reads_weight()});
}

const TorchFamily kGatedFamily(kGatedOperators, [](nb::module_& module) {
  bind_module(module, "gated_linear", plans_of<GatedModule>(), &add_gated_plan);
});

}  // namespace
}  // namespace ingot::python
