// The operators of a norm and the linear layer behind it (nn/norm_linear_functions.h), and of a linear layer with an
// activation, which is one without a norm.
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

// Bits of backward's `wants`. The gradients of gamma and beta come together.
constexpr std::int64_t kInput = 1;
constexpr std::int64_t kWeight = 2;
constexpr std::int64_t kBias = 4;
constexpr std::int64_t kGamma = 8;

using NormLinearModule = TorchModule<NormLinearPlan>;

TorchPlanTable<NormLinearModule>& plans() {
  static auto* const plans = new TorchPlanTable<NormLinearModule>;  // never destroyed: threads may call until the end
  return *plans;
}

// gamma, beta and bias are read only if the layer has them.
struct ForwardArguments {
  const TorchTensor &input, &gamma, &beta, &weight, &bias;
};

// Returns output, and what backward needs. kDelayed: the stack holds delayed scales, behind the other tensors.
template <bool kDelayed>
void forward(TorchArguments& all, TorchValue* stack) {
  const ForwardArguments arguments{all[0], all[1], all[2], all[3], all[4]};
  constexpr std::size_t kScales = 5;
  constexpr std::size_t kPlan = kScales + (kDelayed ? kDelayedTensors : 0);
  const NormLinearModule& of = all.plan(plans(), all.integer(kPlan));
  const std::int64_t keep = all.integer(kPlan + 1);
  const NormLinearPlan& plan = of.plan;
  const LinearPlan& layer = plan.linear;
  const TorchMatrix input = matrix_of(arguments.input, {plan.subject, "input"});
  TorchCall call(input.view.device, all, input.view.rows);
  if constexpr (kDelayed) call.use(delayed_scales(all, kScales), 1, plan.subject);
  const Device device = call.device();
  const std::int64_t tokens = input.view.rows;
  const bool keeps = (keep & kKeepSaved) != 0;

  const NormOperands norm(plan, arguments.gamma, arguments.beta, device);
  const LayerOperands operands(layer, arguments.weight, arguments.bias, device);
  TorchResult output(true, sizes_with_last(arguments.input.sizes(), layer.shape.out_features), *layer.dtypes.output,
                     device);
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
  TorchTensor published = std::move(kept).publish();
  call.note(all, published);
  give(stack, {&output.tensor, &published});
}

// input, gamma, weight and output are read only if the plan reads them again.
struct BackwardArguments {
  const TorchTensor &grad_output, &input, &gamma, &weight, &output;
  TorchTensor& saved;
};

// Returns the gradients of input, gamma, beta, weight and bias; those that are not wanted are empty, and so is that of
// the weight where it is added to a main_grad.
template <std::size_t kMainGrads, bool kDelayed = false>
void backward(TorchArguments& all, TorchValue* stack) {
  const BackwardArguments arguments{all[0], all[1], all[2], all[3], all[4], all[5]};
  const TorchTensor none;
  const TorchTensor& main_grad = kMainGrads > 0 ? all[6] : none;
  constexpr std::size_t kScales = 6 + kMainGrads;
  constexpr std::size_t kPlan = kScales + (kDelayed ? kDelayedTensors : 0);
  const NormLinearModule& of = all.plan(plans(), all.integer(kPlan));
  const std::int64_t bits = asked(all.integer(kPlan + 1), kWeight, main_grad);
  const NormLinearPlan& plan = of.plan;
  const LinearPlan& layer = plan.linear;
  const LinearGradients wants{
      .input = (bits & (kInput | kGamma)) != 0, .weight = (bits & kWeight) != 0, .bias = (bits & kBias) != 0};
  const TorchMatrix grad_output = matrix_of(arguments.grad_output, {plan.subject, "grad_output"});
  TorchCall call(grad_output.view.device, all, grad_output.view.rows);
  if constexpr (kDelayed) call.use(delayed_scales(all, kScales), 1, plan.subject);
  const Device device = call.device();
  const std::int64_t tokens = grad_output.view.rows;

  const TorchKept kept(std::move(arguments.saved), of.kept(tokens),
                       wants.input && !layer.grad_input_reads_weight() && !of.casts_whole_weights_again,
                       {plan.subject, "saved"}, device);
  const LinearSaved saved{.memory = kept.saved(), .plan = plan.identity, .tokens = tokens, .kept = true};
  NormGradients norm(plan, wants.input, arguments.grad_output, arguments.gamma, device);
  LayerGradients gradients(layer, wants.weight, wants.bias, device, main_grad);
  NormLinearBackwardTensors tensors{.saved = &saved,
                                    .grad_output = grad_output.view,
                                    .grad_input = norm.input.view,
                                    .grad_gamma = norm.gamma.view,
                                    .grad_beta = norm.beta.view,
                                    .grad_weight = gradients.weight.view,
                                    .grad_bias = gradients.bias.view,
                                    .accumulate = wants.weight && is_main_grad(main_grad),
                                    .scales = call.scales(layer)};
  TorchMatrix input, gamma, output;
  if (plan.backward_reads_input(wants)) {
    input = operand_of(arguments.input, {plan.subject, "input"}, device);
    tensors.input = input.view;
    if (plan.has_gamma()) {
      gamma = vector_in(arguments.gamma, layer.dtypes.input, {plan.subject, "gamma"}, device);
      tensors.gamma = gamma.view;
    }
  }
  if (layer.gradient.of_output()) {
    output = operand_of(arguments.output, {plan.subject, "output"}, device);
    tensors.output = output.view;
  }
  const WeightOfBackward weight(layer, wants.input, arguments.weight, kept.codes(), of.casts_whole_weights_again, call);
  tensors.weight = weight.matrix.view;
  tensors.codes = weight.codes;
  const TorchRegion scratch(plan.backward_scratch(tokens, wants, call.observes_values()).bytes, device);
  tensors.scratch = scratch.region();
  TorchSide side(call, faster_with_side(layer, tokens) && wants.input && wants.weight,
                 [&] { return multiplies_together(plan, call.backend(), tensors); });
  norm_linear_backward(plan, call.backend(), tensors, call.run(side.stream()));
  if ((bits & kInput) == 0) norm.input.tensor = TorchTensor::empty_bytes(0, device);
  give(stack,
       {&norm.input.tensor, &norm.gamma.tensor, &norm.beta.tensor, &gradients.weight.tensor, &gradients.bias.tensor});
}

constexpr std::array kOperators{
    kTorchOperator<
        forward<false>,
        "norm_linear_forward(Tensor input, Tensor gamma, Tensor beta, Tensor weight, Tensor bias, int plan, int keep)"
        " -> (Tensor, Tensor)">,
    kTorchOperator<
        forward<true>,
        "norm_linear_forward_delayed(Tensor input, Tensor gamma, Tensor beta, Tensor weight, Tensor bias, Tensor scale,"
        " Tensor(a!) amax, Tensor starts, int plan, int keep) -> (Tensor, Tensor)">,
    kTorchOperator<backward<0>,
                   "norm_linear_backward(Tensor grad_output, Tensor input, Tensor gamma, Tensor weight, Tensor output, "
                   "Tensor saved,"
                   " int plan, int wants) -> (Tensor, Tensor, Tensor, Tensor, Tensor)">,
    kTorchOperator<
        backward<1>,
        "norm_linear_backward_into(Tensor grad_output, Tensor input, Tensor gamma, Tensor weight, Tensor output,"
        " Tensor saved, Tensor(a!) main_grad, int plan, int wants) -> (Tensor, Tensor, Tensor, Tensor, Tensor)">,
    kTorchOperator<
        backward<1, true>,
        "norm_linear_backward_delayed(Tensor grad_output, Tensor input, Tensor gamma, Tensor weight, Tensor output,"
        " Tensor saved, Tensor(a!) main_grad, Tensor scale, Tensor(b!) amax, Tensor starts, int plan, int wants)"
        " -> (Tensor, Tensor, Tensor, Tensor, Tensor)">};

}  // namespace

std::span<const TorchOperator> norm_linear_operators() { return kOperators; }

void bind_torch_norm_linear(nb::module_& module) {
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
}

}  // namespace ingot::python
