// The operators of a linear layer whose weight is FP8 codes and factors, as checkpoints have them: forward, and a
// backward that gives the gradient of the input alone (nn/linear_functions.h). ingot/nn/_frozen_linear.py is the layer
// over them.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <array>
#include <string>
#include <utility>

#include "arrays/arrays.h"
#include "ingot/nn/linear/linear_functions.h"
#include "ingot/nn/recipe/recipes.h"
#include "module.h"
#include "torch_abi/torch_memory.h"
#include "torch_abi/torch_weight_operand.h"
#include "torch_ops/torch_module_plans.h"
#include "torch_ops/torch_operator.h"
#include "torch_ops/torch_run.h"

namespace ingot::python {
namespace {

namespace nb = nanobind;
using namespace nb::literals;

TorchPlanTable<LinearPlan>& plans() {
  static auto* const plans = new TorchPlanTable<LinearPlan>;  // never destroyed: as torch_operators.cpp's
  return *plans;
}

// What both directions run with.
struct FrozenCall {
  FrozenCall(const LinearPlan& of, const TorchArguments& arguments, const TorchTensor& codes,
             const TorchTensor& factors, Device device)
      : plan(of), place(device, arguments) {
    const auto [in, out, bias] = plan.shape;
    const CastSpec& spec = plan.weight.spec;
    const std::int64_t count = scale_count(spec.scale, out, in);
    weight.codes = matrix(bytes_of(codes, {plan.subject, "weight"}, in * out, device), spec.out, out, in, device);
    weight.factors = vector(factors_of(factors, {plan.subject, "weight_scale"}, count, Dtype::f32, device), Dtype::f32,
                            count, device);
    scales = place.constants(plan);
  }

  const LinearPlan& plan;
  TorchRun place;
  Float8View weight{};
  LinearScales scales{};
};

// `of_bias`: null for a layer that has none.
void forward(TorchArguments& all, TorchValue* stack, const TorchTensor* of_bias, std::int64_t number) {
  const LinearPlan& plan = all.plan(plans(), number);
  const Device device = device_of(all[0], {plan.subject, "input"});
  const TorchMatrix input = columns_of(all[0], {plan.subject, "input"}, plan.shape.in_features, device);
  const FrozenCall call(plan, all, all[1], all[2], device);
  const std::int64_t tokens = input.view.rows;
  TorchTensor output = TorchTensor::empty(sizes_with_last(all[0].sizes(), plan.shape.out_features),
                                          torch_dtype(*plan.dtypes.output), device);
  const TorchRegion scratch(plan.forward_scratch(tokens, LinearPass::inference, call.place.observes_values()).bytes,
                            device);
  LinearForwardTensors tensors{
      .input = input.view,
      .output = matrix(output.data(), *plan.dtypes.output, tokens, plan.shape.out_features, device),
      .codes = call.weight,
      .scales = call.scales,
      .scratch = scratch.region()};
  TorchMatrix bias;
  if (of_bias != nullptr) {
    bias = columns_of(*of_bias, {plan.subject, "bias"}, plan.shape.out_features, device);
    tensors.bias = bias.view;
  }
  linear_forward(plan, call.place.backend(), tensors, call.place.run());
  give(stack, {&output});
}

void forward_operator(TorchArguments& all, TorchValue* stack) { forward(all, stack, nullptr, all.integer(3)); }

void forward_bias_operator(TorchArguments& all, TorchValue* stack) { forward(all, stack, &all[3], all.integer(4)); }

// The weight's codes are transposed anew each time: kept, they would take as much memory again.
void backward_operator(TorchArguments& all, TorchValue* stack) {
  const TorchTensor& gradient = all[0];
  const LinearPlan& plan = all.plan(plans(), all.integer(3));
  const Device device = device_of(gradient, {plan.subject, "grad_output"});
  const TorchMatrix grad_output = matrix_or_element_of(gradient, {plan.subject, "grad_output"});
  FrozenCall call(plan, all, all[1], all[2], device);
  const std::int64_t tokens = tokens_of(gradient);
  const auto [in, out, bias] = plan.shape;

  const std::int64_t pitch = code_pitch(out);
  const TorchRegion turned(static_cast<std::size_t>(in * pitch), device);
  call.weight.transposed = matrix(turned.region().data, plan.weight.spec.out, in, out, device);
  call.weight.transposed.row_stride = pitch;
  if (!call.weight.codes.empty()) {
    call.place.backend().relayout({.transposed = true}, {.input = call.weight.codes, .output = call.weight.transposed},
                                  call.place.stream());
  }

  TorchTensor grad_input =
      TorchTensor::empty(sizes_with_last(gradient.sizes(), in), torch_dtype(plan.dtypes.input), device);
  const LinearSaved saved{.memory = {}, .plan = plan.identity, .tokens = tokens, .kept = true};
  LinearBackwardTensors tensors{.saved = &saved,
                                .grad_output = grad_output.view,
                                .grad_input = matrix(grad_input.data(), plan.dtypes.input, tokens, in, device),
                                .codes = call.weight,
                                .scales = call.scales};
  const bool expands = expands_grad_output(plan, tensors);
  const TorchRegion scratch(plan.backward_scratch(tokens, {.input = true, .weight = false, .bias = false},
                                                  call.place.observes_values(), expands)
                                .bytes,
                            device);
  tensors.scratch = scratch.region();
  linear_backward(plan, call.place.backend(), tensors, call.place.run());
  give(stack, {&grad_input});
}

constexpr std::array kOperators{
    kTorchOperator<forward_operator, "frozen_linear(Tensor input, Tensor codes, Tensor factors, int plan) -> Tensor">,
    kTorchOperator<forward_bias_operator,
                   "frozen_linear_bias(Tensor input, Tensor codes, Tensor factors, Tensor bias, int plan) -> Tensor">,
    kTorchOperator<backward_operator,
                   "frozen_linear_backward(Tensor grad_output, Tensor codes, Tensor factors, int plan) -> Tensor">};

// The recipe must read the weight's factors in both directions (docs/checkpoints.md). `input` and `bias` are dtypes; an
// empty `bias` is none.
std::int64_t add_plan(const std::string& recipe_name, const std::string& code_dtype, std::int64_t in_features,
                      std::int64_t out_features, const std::string& input, const std::string& bias) {
  LinearConfig config = recipe(recipe_name);
  config.grad_weight = {};  // and so none of its casts
  config.output.b->dtype = config.grad_input.b->dtype = dtype_of(code_dtype, "codes");
  if (config.input == OtherCodes::folded) config.input = OtherCodes::together;
  LinearPlanOptions options{.name = placeholder(0),
                            .config = config,
                            .shape = {.in_features = in_features, .out_features = out_features, .bias = !bias.empty()},
                            .dtypes = {.input = dtype_of(input, "input")},
                            .grad_weight = false};
  if (!bias.empty()) options.dtypes.bias = dtype_of(bias, "bias");
  LinearPlan plan = linear_plan(options);
  const std::uint64_t identity = plan.identity;
  return plans().add(identity, std::move(plan), {sizes_text(in_features, out_features)});
}

}  // namespace

std::span<const TorchOperator> frozen_linear_operators() { return kOperators; }

void bind_torch_frozen(nb::module_& module) {
  module.def("torch_frozen_plan", &add_plan, "recipe"_a, "code_dtype"_a, "in_features"_a, "out_features"_a, "input"_a,
             "bias"_a);
  bind_names(module, "torch_name_frozen", plans());
}

}  // namespace ingot::python
