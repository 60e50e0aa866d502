// The operators of a linear layer whose weight is FP8 codes and factors, as checkpoints have them: forward, and a
// backward that gives the gradient of the input alone (nn/linear_functions.h). ingot/nn/_frozen_linear.py is the layer
// over them.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <array>
#include <string>
#include <utility>

#include "arrays.h"
#include "ingot/nn/linear_functions.h"
#include "ingot/nn/recipes.h"
#include "operations.h"
#include "torch_memory.h"
#include "torch_operator.h"
#include "torch_plan_table.h"
#include "torch_run.h"
#include "torch_weight_operand.h"

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
  FrozenCall(const LinearPlan& of, const TorchTensor& codes, const TorchTensor& factors, Device device)
      : plan(of), place(device) {
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

struct ForwardArguments {
  TorchTensor input;
  TorchTensor codes;
  TorchTensor factors;
  TorchTensor bias;
  std::int64_t plan;
};

void forward(TorchValue* stack, const ForwardArguments& arguments) {
  const LinearPlan& plan = plans().at(arguments.plan);
  const Device device = device_of(arguments.input, {plan.subject, "input"});
  const TorchMatrix input = columns_of(arguments.input, {plan.subject, "input"}, plan.shape.in_features, device);
  const FrozenCall call(plan, arguments.codes, arguments.factors, device);
  const std::int64_t tokens = input.view.rows;
  TorchTensor output = TorchTensor::empty(sizes_with_last(arguments.input.sizes(), plan.shape.out_features),
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
  if (arguments.bias.handle() != nullptr) {
    bias = columns_of(arguments.bias, {plan.subject, "bias"}, plan.shape.out_features, device);
    tensors.bias = bias.view;
  }
  linear_forward(plan, call.place.backend(), tensors, call.place.run());
  give(stack, {&output});
}

void forward_operator(TorchValue* stack) {
  const ForwardArguments arguments{.input = tensor_of(stack[0]),
                                   .codes = tensor_of(stack[1]),
                                   .factors = tensor_of(stack[2]),
                                   .bias = {},
                                   .plan = static_cast<std::int64_t>(stack[3])};
  forward(stack, arguments);
}

void forward_bias_operator(TorchValue* stack) {
  const ForwardArguments arguments{.input = tensor_of(stack[0]),
                                   .codes = tensor_of(stack[1]),
                                   .factors = tensor_of(stack[2]),
                                   .bias = tensor_of(stack[3]),
                                   .plan = static_cast<std::int64_t>(stack[4])};
  forward(stack, arguments);
}

// The weight's codes are transposed anew each time: kept, they would take as much memory again.
void backward_operator(TorchValue* stack) {
  const TorchTensor gradient = tensor_of(stack[0]);
  const TorchTensor codes = tensor_of(stack[1]);
  const TorchTensor factors = tensor_of(stack[2]);
  const LinearPlan& plan = plans().at(static_cast<std::int64_t>(stack[3]));
  const Device device = device_of(gradient, {plan.subject, "grad_output"});
  const TorchMatrix grad_output = matrix_or_element_of(gradient, {plan.subject, "grad_output"});
  FrozenCall call(plan, codes, factors, device);
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

constexpr std::array<TorchOperator, 3> kOperators{{
    {"frozen_linear", "frozen_linear(Tensor input, Tensor codes, Tensor factors, int plan) -> Tensor",
     torch_kernel<forward_operator>},
    {"frozen_linear_bias",
     "frozen_linear_bias(Tensor input, Tensor codes, Tensor factors, Tensor bias, int plan) -> Tensor",
     torch_kernel<forward_bias_operator>},
    {"frozen_linear_backward",
     "frozen_linear_backward(Tensor grad_output, Tensor codes, Tensor factors, int plan) -> Tensor",
     torch_kernel<backward_operator>},
}};

// The recipe must read the weight's factors in both directions (docs/checkpoints.md). `input` and `bias` are dtypes; an
// empty `bias` is none.
std::int64_t add_plan(const std::string& recipe_name, const std::string& name, const std::string& code_dtype,
                      std::int64_t in_features, std::int64_t out_features, const std::string& input,
                      const std::string& bias) {
  LinearConfig config = recipe(recipe_name);
  config.grad_weight = {};  // and so none of its casts
  config.output.b->dtype = config.grad_input.b->dtype = dtype_of(code_dtype, "codes");
  if (config.input == OtherCodes::folded) config.input = OtherCodes::together;
  LinearPlanOptions options{.name = name,
                            .config = config,
                            .shape = {.in_features = in_features, .out_features = out_features, .bias = !bias.empty()},
                            .dtypes = {.input = dtype_of(input, "input")},
                            .grad_weight = false};
  if (!bias.empty()) options.dtypes.bias = dtype_of(bias, "bias");
  LinearPlan plan = linear_plan(options);
  const std::uint64_t identity = plan.identity;
  return plans().add(identity, std::move(plan));
}

}  // namespace

std::span<const TorchOperator> frozen_linear_operators() { return kOperators; }

void bind_torch_frozen(nb::module_& module) {
  module.def("torch_frozen_plan", &add_plan, "recipe"_a, "name"_a, "code_dtype"_a, "in_features"_a, "out_features"_a,
             "input"_a, "bias"_a);
}

}  // namespace ingot::python
