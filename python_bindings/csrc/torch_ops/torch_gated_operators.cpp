// The operators of a linear layer behind a gate: (silu(gate) * up) @ weight^T + bias, or with another activation of
// both. They are the second half of an MLP whose gate and up are layers of their own; torch_shared_operators.cpp has
// the first. The cast of the layer's input computes the activation, as within a whole MLP (nn/mlp_functions.h).
#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "ingot/nn/modules/mlp_plan.h"
#include "module.h"
#include "torch_ops/torch_module_plans.h"
#include "torch_ops/torch_module_tensors.h"

namespace ingot::python {
namespace {

namespace nb = nanobind;
using namespace nb::literals;

// Bits of backward's `wants`.
constexpr std::int64_t kGate = 1;
constexpr std::int64_t kWeight = 2;
constexpr std::int64_t kBias = 4;
constexpr std::int64_t kUp = 8;

struct GatedLinearPlan {
  LinearPlan linear{};  // with the activation as its prologue, x being the gate
  Pointwise by_gate{};  // the activation's derivatives times the gradient of its value
  Pointwise by_up{};

  LinearSavedMemory saved_memory(std::int64_t tokens) const { return linear.saved_memory(tokens); }
};

using GatedModule = TorchModule<GatedLinearPlan>;

TorchPlanTable<GatedModule>& plans() {
  static auto* const plans = new TorchPlanTable<GatedModule>;  // never destroyed: threads may call until the end
  return *plans;
}

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

// Returns output, and what backward needs beside gate and up. kDelayed: the stack holds delayed scales, behind the
// other tensors.
template <bool kDelayed>
void forward(TorchArguments& all, TorchValue* stack) {
  const TorchTensor& gate = all[0];
  const TorchTensor& up = all[1];
  constexpr std::size_t kScales = 4;
  constexpr std::size_t kPlan = kScales + (kDelayed ? kDelayedTensors : 0);
  const GatedModule& of = all.plan(plans(), all.integer(kPlan));
  const std::int64_t keep = all.integer(kPlan + 1);
  const LinearPlan& plan = of.plan.linear;
  const Device device = gate.device().value_or(Device{});
  const GateOperands input(plan, gate, up, device);
  const std::int64_t tokens = input.gate.view.rows;
  TorchCall call(device, all, tokens);
  if constexpr (kDelayed) call.use(delayed_scales(all, kScales), 1, plan.subject);
  const bool keeps = (keep & kKeepSaved) != 0;

  const LayerOperands operands(plan, all[2], all[3], device);
  TorchResult output(true, sizes_with_last(gate.sizes(), plan.shape.out_features), *plan.dtypes.output, device);
  TorchKept kept(of.kept(tokens), keeps, (keep & kKeepCodes) != 0, device);
  LinearSaved saved{.memory = kept.saved()};
  const LinearPass pass = keeps ? LinearPass::training : LinearPass::inference;
  const TorchRegion scratch(plan.forward_scratch(tokens, pass, call.observes_values()).bytes, device);
  LinearForwardTensors tensors{.input = input.gate.view,
                               .weight = operands.weight.view,
                               .bias = operands.bias.view,
                               .output = output.view,
                               .prologue_inputs = {input.up.view},
                               .scales = call.scales(plan),
                               .saved = keeps ? &saved : nullptr,
                               .scratch = scratch.region()};
  if (of.weight_bytes > 0) tensors.weight_into = kept.codes();
  linear_forward(plan, call.backend(), tensors, call.run());
  TorchTensor published = std::move(kept).publish();
  call.note(all, published);
  give(stack, {&output.tensor, &published});
}

struct BackwardArguments {
  const TorchTensor &grad_output, &gate, &up, &weight;
  TorchTensor& saved;
};

// The gradient of gate or up, through the activation.
TorchResult flow_back(const GatedLinearPlan& plan, const Pointwise& expression, const GateOperands& input,
                      const TorchResult& grad_values, TorchCall& call) {
  TorchResult grad(true, grad_values.tensor.sizes(), input.gate.view.dtype, call.device());
  PointwiseTensors inputs{};
  std::ranges::transform(expression.inputs(), inputs.begin(), [&](const PointwiseInput& each) {
    return each.name == "up" ? input.up.view : grad_values.view;
  });
  call.backend().elementwise(
      {.in = input.gate.view.dtype, .pointwise = expression, .fast_math = plan.linear.fusion.fast_math},
      {.input = input.gate.view, .inputs = inputs, .output = grad.view}, call.stream());
  return grad;
}

// Returns the gradients of gate, up, weight and bias; those that are not wanted are empty, and so is that of the weight
// where it is added to a main_grad.
template <std::size_t kMainGrads, bool kDelayed = false>
void backward(TorchArguments& all, TorchValue* stack) {
  const BackwardArguments arguments{all[0], all[1], all[2], all[3], all[4]};
  const TorchTensor none;
  const TorchTensor& main_grad = kMainGrads > 0 ? all[5] : none;
  constexpr std::size_t kScales = 5 + kMainGrads;
  constexpr std::size_t kPlan = kScales + (kDelayed ? kDelayedTensors : 0);
  const GatedModule& of = all.plan(plans(), all.integer(kPlan));
  const std::int64_t bits = asked(all.integer(kPlan + 1), kWeight, main_grad);
  const LinearPlan& plan = of.plan.linear;
  const LinearGradients wants{
      .input = (bits & (kGate | kUp)) != 0, .weight = (bits & kWeight) != 0, .bias = (bits & kBias) != 0};
  const TorchMatrix grad_output = matrix_of(arguments.grad_output, {plan.subject, "grad_output"});
  const Device device = grad_output.view.device;
  const std::int64_t tokens = grad_output.view.rows;
  TorchCall call(device, all, tokens);
  if constexpr (kDelayed) call.use(delayed_scales(all, kScales), 1, plan.subject);
  const GateOperands input(plan, arguments.gate, arguments.up, device);

  const TorchKept kept(std::move(arguments.saved), of.kept(tokens),
                       wants.input && !plan.grad_input_reads_weight() && !of.casts_whole_weights_again,
                       {plan.subject, "saved"}, device);
  const LinearSaved saved{.memory = kept.saved(), .plan = plan.identity, .tokens = tokens, .kept = true};
  const TorchResult grad_values(wants.input, arguments.gate.sizes(), plan.dtypes.input, device);
  LayerGradients gradients(plan, wants.weight, wants.bias, device, main_grad);
  const WeightOfBackward weight(plan, wants.input, arguments.weight, kept.codes(), of.casts_whole_weights_again, call);
  const TorchRegion scratch(plan.backward_scratch(tokens, wants, call.observes_values()).bytes, device);
  linear_backward(plan, call.backend(),
                  {.saved = &saved,
                   .grad_output = grad_output.view,
                   .grad_input = grad_values.view,
                   .grad_weight = gradients.weight.view,
                   .grad_bias = gradients.bias.view,
                   .accumulate = wants.weight && is_main_grad(main_grad),
                   .input = input.gate.view,
                   .weight = weight.matrix.view,
                   .prologue_inputs = {input.up.view},
                   .codes = weight.codes,
                   .scales = call.scales(plan),
                   .scratch = scratch.region()},
                  call.run());
  TorchTensor grad_gate = TorchTensor::empty_bytes(0, device);
  TorchTensor grad_up = TorchTensor::empty_bytes(0, device);
  if ((bits & kGate) != 0) grad_gate = flow_back(of.plan, of.plan.by_gate, input, grad_values, call).tensor;
  if ((bits & kUp) != 0) grad_up = flow_back(of.plan, of.plan.by_up, input, grad_values, call).tensor;
  give(stack, {&grad_gate, &grad_up, &gradients.weight.tensor, &gradients.bias.tensor});
}

constexpr std::array kOperators{
    kTorchOperator<forward<false>,
                   "gated_linear_forward(Tensor gate, Tensor up, Tensor weight, Tensor bias, int plan, int keep) -> "
                   "(Tensor, Tensor)">,
    kTorchOperator<forward<true>,
                   "gated_linear_forward_delayed(Tensor gate, Tensor up, Tensor weight, Tensor bias, Tensor scale, "
                   "Tensor(a!) amax,"
                   " Tensor starts, int plan, int keep) -> (Tensor, Tensor)">,
    kTorchOperator<
        backward<0>,
        "gated_linear_backward(Tensor grad_output, Tensor gate, Tensor up, Tensor weight, Tensor saved, int plan,"
        " int wants) -> (Tensor, Tensor, Tensor, Tensor)">,
    kTorchOperator<backward<1>,
                   "gated_linear_backward_into(Tensor grad_output, Tensor gate, Tensor up, Tensor weight, Tensor saved,"
                   " Tensor(a!) main_grad, int plan, int wants) -> (Tensor, Tensor, Tensor, Tensor)">,
    kTorchOperator<
        backward<1, true>,
        "gated_linear_backward_delayed(Tensor grad_output, Tensor gate, Tensor up, Tensor weight, Tensor saved,"
        " Tensor(a!) main_grad, Tensor scale, Tensor(b!) amax, Tensor starts, int plan, int wants)"
        " -> (Tensor, Tensor, Tensor, Tensor)">};

GatedLinearPlan gated_plan(const MlpPlanOptions& options) {
  const MlpPlan mlp = mlp_plan(options);  // it reads the activation, and derives it
  LinearPlan layer = linear_plan({.name = placeholder(0),
                                  .config = options.config,
                                  .shape = mlp.down.shape,
                                  .dtypes = options.dtypes,
                                  .fusion = mlp.down.fusion,
                                  .grad_weight = options.grad_weight,
                                  .subject = options.subject});
  return {.linear = std::move(layer), .by_gate = mlp.by_x, .by_up = mlp.by_up};
}

}  // namespace

std::span<const TorchOperator> gated_linear_operators() { return kOperators; }

void bind_torch_gated_linear(nb::module_& module) {
  module.def(
      "torch_gated_linear_plan",
      [](const std::string& subject, const std::string& recipe_name, std::int64_t hidden, std::int64_t out_features,
         const DtypeTexts& dtypes, bool grad_weight, const std::string& activation, bool fast_math, bool weight_again) {
        GatedLinearPlan plan =
            gated_plan({.config = config_of(recipe_name, weight_again),
                        .shape = {.features = out_features, .hidden = hidden, .bias = dtypes[2].has_value()},
                        .dtypes = linear_dtypes(dtypes),
                        .activation = activation,
                        .fast_math = fast_math,
                        .grad_weight = grad_weight,
                        .subject = subject});
        const LinearPlan layer = plan.linear;
        return add_module(
            plans(), layer.identity,
            GatedModule(std::move(plan), layer.weight_memory().bytes, casts_whole_again(layer, weight_again)),
            {sizes_text(hidden, out_features)}, {.input_for_input = true, .weight = layer.grad_input_reads_weight()});
      },
      "subject"_a, "recipe"_a, "hidden"_a, "out_features"_a, "dtypes"_a, "grad_weight"_a, "activation"_a, "fast_math"_a,
      "weight_again"_a);
  bind_names(module, "torch_name_gated_linear", plans());
}

}  // namespace ingot::python
