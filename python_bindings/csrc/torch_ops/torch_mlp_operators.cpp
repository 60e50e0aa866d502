// The operators of an MLP, plain or gated, perhaps with a norm in front (nn/mlp_functions.h).
#include <array>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "ingot/nn/modules/mlp_functions.h"
#include "module.h"
#include "torch_ops/torch_module_plans.h"
#include "torch_ops/torch_module_tensors.h"

namespace ingot::python {
namespace {

namespace nb = nanobind;
using namespace nb::literals;

// Bits of backward's `wants`. The gradients of gamma and beta come together.
constexpr std::int64_t kInput = 1;
constexpr std::int64_t kUpWeight = 2;
constexpr std::int64_t kUpBias = 4;
constexpr std::int64_t kGamma = 8;
constexpr std::int64_t kDownWeight = 16;
constexpr std::int64_t kDownBias = 32;

using MlpModule = TorchModule<MlpPlan>;

TorchPlanTable<MlpModule>& plans() {
  static auto* const plans = new TorchPlanTable<MlpModule>;  // never destroyed: threads may call until the end
  return *plans;
}

std::size_t codes_of_up(const MlpPlan& plan) { return plan.up.linear.weight_memory().bytes; }
std::size_t codes_of_down(const MlpPlan& plan) { return plan.down.weight_memory().bytes; }

// What one of the two layers has in forward.
MlpLayerForward layer_forward(const LayerOperands& operands, const MemoryRegion& codes, const LinearScales& scales) {
  MlpLayerForward layer{.weight = operands.weight.view, .bias = operands.bias.view, .scales = scales};
  if (codes.bytes > 0) layer.weight_into = codes;
  return layer;
}

// gamma, beta and biases are read only if the MLP has them.
struct ForwardArguments {
  const TorchTensor &input, &gamma, &beta, &up_weight, &up_bias, &down_weight, &down_bias;
};

// Returns output, and what backward needs. kDelayed: the stack holds delayed scales, behind the other tensors.
template <bool kDelayed>
void forward(TorchArguments& all, TorchValue* stack) {
  const ForwardArguments arguments{all[0], all[1], all[2], all[3], all[4], all[5], all[6]};
  constexpr std::size_t kScales = 7;
  constexpr std::size_t kPlan = kScales + (kDelayed ? kDelayedTensors : 0);
  const MlpModule& of = all.plan(plans(), all.integer(kPlan));
  const std::int64_t keep = all.integer(kPlan + 1);
  const MlpPlan& plan = of.plan;
  const TorchMatrix input = matrix_of(arguments.input, {plan.subject, "input"});
  TorchCall call(input.view.device, all, input.view.rows);
  if constexpr (kDelayed) call.use(delayed_scales(all, kScales), 2, plan.subject);
  const Device device = call.device();
  const std::int64_t tokens = input.view.rows;
  const bool keeps = (keep & kKeepSaved) != 0;

  const NormOperands norm(plan.up, arguments.gamma, arguments.beta, device);
  const LayerOperands up(plan.up.linear, arguments.up_weight, arguments.up_bias, device);
  const LayerOperands down(plan.down, arguments.down_weight, arguments.down_bias, device);
  TorchResult output(true, arguments.input.sizes(), *plan.down.dtypes.output, device);
  TorchKept kept(of.kept(tokens), keeps, (keep & kKeepCodes) != 0, device);
  LinearSaved saved{.memory = kept.saved()};
  const LinearPass pass = keeps ? LinearPass::training : LinearPass::inference;
  const TorchRegion scratch(plan.forward_scratch(tokens, pass, call.observes_values()).bytes, device);
  const std::size_t up_bytes = codes_of_up(plan);
  const MlpForwardTensors tensors{
      .input = input.view,
      .gamma = norm.gamma.view,
      .beta = norm.beta.view,
      .output = output.view,
      .up = layer_forward(up, kept.codes(0, up_bytes), call.scales(plan.up.linear, 0)),
      .down = layer_forward(down, kept.codes(up_bytes, codes_of_down(plan)), call.scales(plan.down, 1)),
      .saved = keeps ? &saved : nullptr,
      .scratch = scratch.region()};
  mlp_forward(plan, call.backend(), tensors, call.run());
  TorchTensor published = std::move(kept).publish();
  call.note(all, published);
  give(stack, {&output.tensor, &published});
}

// input, gamma and the weights are read only if the plan reads them again.
struct BackwardArguments {
  const TorchTensor &grad_output, &input, &gamma, &up_weight, &down_weight;
  TorchTensor& saved;
};

// Returns the gradients of input, gamma, beta, up_weight, up_bias, down_weight and down_bias; those that are not wanted
// are empty, and so are those of weights that are added to a main_grad.
template <std::size_t kMainGrads, bool kDelayed = false>
void backward(TorchArguments& all, TorchValue* stack) {
  const BackwardArguments arguments{all[0], all[1], all[2], all[3], all[4], all[5]};
  std::array<TorchTensor, 2> none;
  const std::span<const TorchTensor> main_grads = kMainGrads > 0 ? all.from(6) : std::span<TorchTensor>(none);
  constexpr std::size_t kScales = 6 + kMainGrads;
  constexpr std::size_t kPlan = kScales + (kDelayed ? kDelayedTensors : 0);
  const MlpModule& of = all.plan(plans(), all.integer(kPlan));
  const std::int64_t bits = asked(asked(all.integer(kPlan + 1), kUpWeight, main_grads[0]), kDownWeight, main_grads[1]);
  const MlpPlan& plan = of.plan;
  const MlpGradients wants{.input = (bits & (kInput | kGamma)) != 0,
                           .up_weight = (bits & kUpWeight) != 0,
                           .up_bias = (bits & kUpBias) != 0,
                           .down_weight = (bits & kDownWeight) != 0,
                           .down_bias = (bits & kDownBias) != 0};
  const TorchMatrix grad_output = matrix_of(arguments.grad_output, {plan.subject, "grad_output"});
  TorchCall call(grad_output.view.device, all, grad_output.view.rows);
  if constexpr (kDelayed) call.use(delayed_scales(all, kScales), 2, plan.subject);
  const Device device = call.device();
  const std::int64_t tokens = grad_output.view.rows;

  const bool needs_codes = wants.reaches_up() && of.weight_bytes > 0 && !plan.down.grad_input_reads_weight() &&
                           !of.casts_whole_weights_again;
  const TorchKept kept(std::move(arguments.saved), of.kept(tokens), needs_codes, {plan.subject, "saved"}, device);
  const LinearSaved saved{.memory = kept.saved(), .plan = plan.identity, .tokens = tokens, .kept = true};
  NormGradients norm(plan.up, wants.input, arguments.grad_output, arguments.gamma, device);
  LayerGradients up(plan.up.linear, wants.up_weight, wants.up_bias, device, main_grads[0]);
  LayerGradients down(plan.down, wants.down_weight, wants.down_bias, device, main_grads[1]);
  const std::array<bool, 2> accumulates{wants.up_weight && is_main_grad(main_grads[0]),
                                        wants.down_weight && is_main_grad(main_grads[1])};
  const bool accumulate = accumulates[0] || accumulates[1];
  if (accumulate && !accumulates[0]) up.clear_weight(call.backend(), call.stream());
  if (accumulate && !accumulates[1]) down.clear_weight(call.backend(), call.stream());
  const std::size_t up_bytes = codes_of_up(plan);
  const WeightOfBackward up_weight(plan.up.linear, wants.input, arguments.up_weight, kept.codes(0, up_bytes),
                                   of.casts_whole_weights_again, call);
  const WeightOfBackward down_weight(plan.down, wants.reaches_up(), arguments.down_weight,
                                     kept.codes(up_bytes, codes_of_down(plan)), of.casts_whole_weights_again, call);
  TorchMatrix input, gamma;
  if (plan.up.backward_reads_input(wants.of_up())) {
    input = operand_of(arguments.input, {plan.subject, "input"}, device);
    if (plan.up.has_gamma()) {
      gamma = vector_in(arguments.gamma, plan.up.linear.dtypes.input, {plan.subject, "gamma"}, device);
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
                                          .scales = call.scales(plan.up.linear, 0)},
                                   .down = {.grad_weight = down.weight.view,
                                            .grad_bias = down.bias.view,
                                            .weight = down_weight.matrix.view,
                                            .codes = down_weight.codes,
                                            .scales = call.scales(plan.down, 1)},
                                   .scratch = scratch.region()};
  const bool faster = faster_with_side(plan.up.linear, tokens) && faster_with_side(plan.down, tokens);
  TorchSide side(call, faster && wants.reaches_up() && (wants.up_weight || wants.down_weight),
                 [&] { return multiplies_together(plan, call.backend(), tensors); });
  mlp_backward(plan, call.backend(), tensors, call.run(side.stream()));
  if ((bits & kInput) == 0) norm.input.tensor = TorchTensor::empty_bytes(0, device);
  give(stack, {&norm.input.tensor, &norm.gamma.tensor, &norm.beta.tensor, &up.weight.tensor, &up.bias.tensor,
               &down.weight.tensor, &down.bias.tensor});
}

constexpr std::array kOperators{
    kTorchOperator<
        forward<false>,
        "mlp_forward(Tensor input, Tensor gamma, Tensor beta, Tensor up_weight, Tensor up_bias, Tensor down_weight,"
        " Tensor down_bias, int plan, int keep) -> (Tensor, Tensor)">,
    kTorchOperator<
        forward<true>,
        "mlp_forward_delayed(Tensor input, Tensor gamma, Tensor beta, Tensor up_weight, Tensor up_bias,"
        " Tensor down_weight, Tensor down_bias, Tensor scale, Tensor(a!) amax, Tensor starts, int plan, int keep)"
        " -> (Tensor, Tensor)">,
    kTorchOperator<backward<0>,
                   "mlp_backward(Tensor grad_output, Tensor input, Tensor gamma, Tensor up_weight, Tensor down_weight, "
                   "Tensor saved,"
                   " int plan, int wants) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)">,
    kTorchOperator<
        backward<2>,
        "mlp_backward_into(Tensor grad_output, Tensor input, Tensor gamma, Tensor up_weight, Tensor down_weight,"
        " Tensor saved, Tensor(a!) up_main_grad, Tensor(b!) down_main_grad, int plan, int wants)"
        " -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)">,
    kTorchOperator<
        backward<2, true>,
        "mlp_backward_delayed(Tensor grad_output, Tensor input, Tensor gamma, Tensor up_weight, Tensor down_weight,"
        " Tensor saved, Tensor(a!) up_main_grad, Tensor(b!) down_main_grad, Tensor scale, Tensor(c!) amax,"
        " Tensor starts, int plan, int wants) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)">};

}  // namespace

std::span<const TorchOperator> mlp_operators() { return kOperators; }

void bind_torch_mlp(nb::module_& module) {
  module.def(
      "torch_mlp_plan",
      [](const std::string& subject, const std::string& recipe_name, std::int64_t features, std::int64_t hidden,
         const DtypeTexts& dtypes, bool grad_weight, const std::optional<NormText>& norm, const std::string& activation,
         bool fast_math, bool weight_again) {
        const MlpPlan plan = mlp_plan({.name = placeholder(0),
                                       .config = config_of(recipe_name, weight_again),
                                       .shape = {.features = features, .hidden = hidden, .bias = dtypes[2].has_value()},
                                       .dtypes = linear_dtypes(dtypes),
                                       .activation = activation,
                                       .fast_math = fast_math,
                                       .norm = norm_options(norm),
                                       .grad_weight = grad_weight,
                                       .subject = subject});
        return add_module(
            plans(), plan.identity,
            MlpModule(plan, codes_of_up(plan) + codes_of_down(plan), casts_whole_again(plan.down, weight_again)),
            {sizes_text(features, hidden)},
            {.input_for_input = plan.up.norm.has_value(),
             .input_for_weight = plan.up.backward_reads_input({.input = false, .bias = false}),
             .weight = plan.down.grad_input_reads_weight()});
      },
      "subject"_a, "recipe"_a, "features"_a, "hidden"_a, "dtypes"_a, "grad_weight"_a, "norm"_a.none(), "activation"_a,
      "fast_math"_a, "weight_again"_a);
  bind_names(module, "torch_name_mlp", plans());
}

}  // namespace ingot::python
