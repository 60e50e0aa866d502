// The operators of an MLP, plain or gated, perhaps with a norm in front (nn/modules/mlp_functions.h).
#include <array>
#include <cstddef>
#include <utility>

#include "ingot/nn/modules/mlp_functions.h"
#include "module.h"
#include "torch_ops/torch_module_plans.h"
#include "torch_ops/torch_module_tensors.h"

namespace ingot::python {
namespace {

namespace nb = nanobind;

using MlpModule = TorchModule<MlpPlan>;

constexpr std::size_t kUpLayer = 0;
constexpr std::size_t kDownLayer = 1;

template <class Arguments>
std::array<TorchWeight, 2> weights_of(Arguments& all) {
  return {TorchWeight{&all.template tensor<"up_weight">(), &all.template tensor<"up_weight_scale_inv">()},
          TorchWeight{&all.template tensor<"down_weight">(), &all.template tensor<"down_weight_scale_inv">()}};
}

// What one of the two layers has in forward.
MlpLayerForward layer_forward(const LayerOperands& operands, const MemoryRegion& codes, const LinearScales& scales) {
  MlpLayerForward layer{
      .weight = operands.weight.view, .bias = operands.bias.view, .codes = operands.codes, .scales = scales};
  if (codes.bytes > 0) layer.weight_into = codes;
  return layer;
}

// Returns output, and what backward needs. gamma, beta and biases are read only if the MLP has them.
void forward(TorchArgumentsOf<kMlpForward>& all) {
  const MlpModule& of = all.plan(plans_of<MlpModule>(), all.integer<"plan">());
  const std::int64_t keep = all.integer<"keep">();
  const MlpPlan& plan = of.plan;
  const TorchMatrix input = matrix_of(all.tensor<"input">(), {plan.subject, "input"});
  TorchCall call(input.view.device, all, input.view.rows);
  call.use(delayed_scales(all), 2, plan.subject);
  const Device device = call.device();
  const std::int64_t tokens = input.view.rows;
  const bool keeps = (keep & kKeepSaved) != 0;

  const NormOperands norm(plan.up, all.tensor<"gamma">(), all.tensor<"beta">(), device);
  const std::array<TorchWeight, 2> weights = weights_of(all);
  const LayerOperands up(plan.up.linear, weights[kUpLayer], all.tensor<"up_bias">(), call);
  const LayerOperands down(plan.down, weights[kDownLayer], all.tensor<"down_bias">(), call);
  TorchResult output(true, all.tensor<"input">().sizes(), *plan.down.dtypes.output, device);
  TorchKept kept(of.kept(tokens, weights), keeps, (keep & kKeepCodes) != 0, device);
  LinearSaved saved{.memory = kept.saved()};
  const LinearPass pass = keeps ? LinearPass::training : LinearPass::inference;
  const TorchRegion scratch(plan.forward_scratch(tokens, pass, call.observes_values()).bytes, device);
  const MlpForwardTensors tensors{
      .input = input.view,
      .gamma = norm.gamma.view,
      .beta = norm.beta.view,
      .output = output.view,
      .up = layer_forward(up, kept.codes(kUpLayer), call.scales(plan.up.linear, kUpLayer)),
      .down = layer_forward(down, kept.codes(kDownLayer), call.scales(plan.down, kDownLayer)),
      .saved = keeps ? &saved : nullptr,
      .scratch = scratch.region()};
  mlp_forward(plan, call.backend(), tensors, call.run());
  all.result<"output">() = std::move(output.tensor);
  all.result<"saved">() = std::move(kept).publish();
  call.note(all, all.result<"saved">());
}

// Returns the gradients of input, gamma, beta, up_weight, up_bias, down_weight and down_bias; those that are not wanted
// are none, and so are those of weights that are added to a main_grad. input, gamma and the weights are read only if
// the plan reads them again.
void backward(TorchArgumentsOf<kMlpBackward>& all) {
  const TorchTensor& up_main_grad = all.tensor<"up_main_grad">();
  const TorchTensor& down_main_grad = all.tensor<"down_main_grad">();
  const MlpModule& of = all.plan(plans_of<MlpModule>(), all.integer<"plan">());
  const std::int64_t bits =
      asked(asked(all.integer<"wants">(), weight_bit(0), up_main_grad), weight_bit(1), down_main_grad);
  const MlpPlan& plan = of.plan;
  const MlpGradients wants{.input = (bits & (kInput | kGamma)) != 0,
                           .up_weight = (bits & weight_bit(0)) != 0,
                           .up_bias = (bits & bias_bit(0)) != 0,
                           .down_weight = (bits & weight_bit(1)) != 0,
                           .down_bias = (bits & bias_bit(1)) != 0};
  const TorchMatrix grad_output = matrix_of(all.tensor<"grad_output">(), {plan.subject, "grad_output"});
  TorchCall call(grad_output.view.device, all, grad_output.view.rows);
  call.use(delayed_scales(all), 2, plan.subject);
  const Device device = call.device();
  const std::int64_t tokens = grad_output.view.rows;

  const std::array<TorchWeight, 2> weights = weights_of(all);
  const TorchKeptSize size = of.kept(tokens, weights);
  const bool needs_codes = wants.reaches_up() && size.all_codes() > 0 && !plan.down.grad_input_reads_weight() &&
                           !of.casts_whole_weights_again;
  const TorchKept kept(std::move(all.tensor<"saved">()), size, needs_codes, {plan.subject, "saved"}, device);
  const LinearSaved saved{.memory = kept.saved(), .plan = plan.identity, .tokens = tokens, .kept = true};
  NormGradients norm(plan.up, wants.input, all.tensor<"grad_output">(), all.tensor<"gamma">(), device);
  LayerGradients up(plan.up.linear, wants.up_weight, wants.up_bias, device, up_main_grad);
  LayerGradients down(plan.down, wants.down_weight, wants.down_bias, device, down_main_grad);
  const std::array<bool, 2> accumulates{wants.up_weight && up_main_grad.given(),
                                        wants.down_weight && down_main_grad.given()};
  const bool accumulate = accumulates[0] || accumulates[1];
  if (accumulate && !accumulates[0]) up.clear_weight(call.backend(), call.stream());
  if (accumulate && !accumulates[1]) down.clear_weight(call.backend(), call.stream());
  const WeightOfBackward up_weight(plan.up.linear, wants.input, weights[kUpLayer], kept.codes(kUpLayer),
                                   of.casts_whole_weights_again, call);
  const WeightOfBackward down_weight(plan.down, wants.reaches_up(), weights[kDownLayer], kept.codes(kDownLayer),
                                     of.casts_whole_weights_again, call);
  TorchMatrix input, gamma;
  if (plan.up.backward_reads_input(wants.of_up())) {
    input = operand_of(all.tensor<"input">(), {plan.subject, "input"}, device);
    if (plan.up.has_gamma()) {
      gamma = vector_in(all.tensor<"gamma">(), plan.up.linear.dtypes.input, {plan.subject, "gamma"}, device);
    }
  }
  const TorchRegion scratch(plan.backward_scratch(tokens, wants, call.observes_values()).bytes, device);
  const MlpBackwardTensors tensors{.saved = &saved,
                                   .grad_output = grad_output.view,
                                   .grad_input = norm.input.view,
                                   .grad_gamma = norm.gamma.view,
                                   .grad_beta = norm.beta.view,
                                   .accumulate = accumulate,
                                   .input = input.view,
                                   .gamma = gamma.view,
                                   .up = {.grad_weight = up.weight.view,
                                          .grad_bias = up.bias.view,
                                          .weight = up_weight.matrix.view,
                                          .codes = up_weight.codes,
                                          .scales = call.scales(plan.up.linear, kUpLayer)},
                                   .down = {.grad_weight = down.weight.view,
                                            .grad_bias = down.bias.view,
                                            .weight = down_weight.matrix.view,
                                            .codes = down_weight.codes,
                                            .scales = call.scales(plan.down, kDownLayer)},
                                   .scratch = scratch.region()};
  const bool faster = faster_with_side(plan.up.linear, tokens) && faster_with_side(plan.down, tokens);
  TorchSide side(call, faster && wants.reaches_up() && (wants.up_weight || wants.down_weight),
                 [&] { return multiplies_together(plan, call.backend(), tensors); });
  mlp_backward(plan, call.backend(), tensors, call.run(side.stream()));
  if ((bits & kInput) != 0) all.result<"grad_input">() = std::move(norm.input.tensor);
  all.result<"grad_gamma">() = std::move(norm.gamma.tensor);
  all.result<"grad_beta">() = std::move(norm.beta.tensor);
  all.result<"grad_up_weight">() = std::move(up.weight.tensor);
  all.result<"grad_up_bias">() = std::move(up.bias.tensor);
  all.result<"grad_down_weight">() = std::move(down.weight.tensor);
  all.result<"grad_down_bias">() = std::move(down.bias.tensor);
}

constexpr std::array kMlpOperators{kTorchOperator<kMlpForward, forward>, kTorchOperator<kMlpBackward, backward>};

nb::tuple add_mlp_plan(const ModuleText& module) {
  const LinearShape down = module.shape(1);
  const MlpPlan plan =
      mlp_plan({.name = placeholder(0),
                .config = module.config(),
                .shape = {.features = down.out_features, .hidden = down.in_features, .bias = down.bias},
                .dtypes = module.dtypes(),
                .activation = module.activation,
                .fast_math = module.fast_math,
                .norm = module.norm_options(),
                .grad_weight = module.grad_weight,
                .subject = module.subject});
  return add_module(plan.identity,
                    MlpModule(plan, {plan.up.linear.weight_memory().bytes, plan.down.weight_memory().bytes},
                              casts_whole_again(plan.down, module.weight_again)),
                    {sizes_text(down.out_features, down.in_features)},
                    {.input_for_input = plan.up.norm.has_value(),
                     .input_for_weight = plan.up.backward_reads_input({.input = false, .bias = false}),
                     .weight = plan.down.grad_input_reads_weight()});
}

const TorchFamily kMlpFamily(kMlpOperators, [](nb::module_& module) {
  bind_module(module, "mlp", plans_of<MlpModule>(), &add_mlp_plan);
});

}  // namespace
}  // namespace ingot::python
