// The operators of a linear layer: forward and backward (nn/linear/linear_functions.h), with a weight in high precision
// or in FP8, as FSDP gathers it and as checkpoints have it. torch_split_operators.cpp has the parts of forward for
// compilers. Autograd and fake kernels are Python's (ingot/torch).
#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "arrays/arrays.h"
#include "ingot/nn/linear/linear_functions.h"
#include "ingot/nn/recipe/recipes.h"
#include "ingot/runtime/backend.h"
#include "torch_abi/torch_float8_weight.h"
#include "torch_abi/torch_memory.h"
#include "torch_ops/torch_module_plans.h"
#include "torch_ops/torch_module_tensors.h"
#include "torch_ops/torch_operator.h"
#include "torch_ops/torch_plans.h"
#include "torch_ops/torch_run.h"

namespace ingot::python {
namespace {

namespace nb = nanobind;
using namespace nb::literals;

TensorName name_of(const TorchPlan& plan, const char* tensor) { return {plan.plan.subject, tensor}; }

void require_device(const TorchPlan& plan, const char* name, const Tensor& tensor, Device device) {
  if (tensor.device == device) return;
  throw Error(ErrorCode::invalid_argument, name_of(plan, name).text(),
              "is on " + print(tensor.device) + ", but the layer runs on " + print(device) + ": move one with .to()");
}

// What a call runs with.
struct Call {
  Call(const TorchPlan& of, Device on, const TorchArguments& arguments, std::int64_t tokens)
      : plan(of.plan),
        device(on),
        where(on, arguments, tokens),
        backend(where.backend()),
        stream(where.stream()),
        scales(where.constants(plan)) {}

  const LinearPlan& plan;
  Device device;
  TorchRun where;
  Backend& backend;
  Stream& stream;
  LinearScales scales;
};

// Scales that the caller gives, f32 of one element, and maxima of what is cast with them. A scale may have no handle.
class GivenScales {
 public:
  struct Given {
    LinearScale LinearScales::*scale;
    const char* name;
    const TorchTensor& tensor;
  };

  // Clears the maxima, of which none are made where no scale is given.
  GivenScales(Call& call, const std::array<Given, 2>& given) {
    if (!given[0].tensor.given() && !given[1].tensor.given()) return;
    amaxes_ =
        TorchTensor::empty(std::array{static_cast<std::int64_t>(given.size())}, torch_dtype(Dtype::f32), call.device);
    auto* amax = static_cast<float*>(amaxes_.data());
    call.backend.fill_zero(amax, given.size() * sizeof(float), call.stream);
    for (const Given& each : given) {
      if (each.tensor.given()) call.scales.*each.scale = scale_of(call, each, amax);
      ++amax;
    }
  }

  TorchTensor amaxes() && { return std::move(amaxes_); }

 private:
  static LinearScale scale_of(const Call& call, const Given& given, float* amax) {
    std::int64_t elements = 1;
    for (const std::int64_t size : given.tensor.sizes()) elements *= size;
    if (elements != 1 || given.tensor.dtype() != Dtype::f32 || given.tensor.device() != call.device) {
      throw Error(ErrorCode::invalid_argument, TensorName{call.plan.subject, given.name}.text(),
                  "must be float32 of one element on the layer's device");
    }
    return {.scale = vector(given.tensor.data(), Dtype::f32, 1, call.device),
            .amax = vector(amax, Dtype::f32, 1, call.device)};
  }

  TorchTensor amaxes_{};
};

// ---- forward -------------------------------------------------------------------------------------------------------

void forward(TorchArgumentsOf<kLinearForward>& all) {
  const TorchPlan& plan = all.plan(torch_plans(), all.integer<"plan">());
  const TorchMatrix input = matrix_of(all.tensor<"input">(), name_of(plan, "input"));
  const Device device = input.view.device;
  std::optional<Float8Weight> float8;
  TorchMatrix weight;
  if (all.tensor<"weight_scale_inv">().given()) {
    float8.emplace(plan.plan, plan.frozen, all.tensor<"weight">(), all.tensor<"weight_scale_inv">(), device);
  } else {
    weight = matrix_of(all.tensor<"weight">(), name_of(plan, "weight"));
    require_device(plan, "weight", weight.view, device);
  }
  const std::int64_t tokens = input.view.rows;
  Call call(plan, device, all, tokens);
  GivenScales given(call, {{{&LinearScales::input, "scale of input", all.tensor<"input_scale">()},
                            {&LinearScales::weight, "scale of weight", all.tensor<"weight_scale">()}}});
  const std::int64_t keep = all.integer<"keep">();
  const bool keeps_saved = (keep & kKeepSaved) != 0;

  TorchTensor output = TorchTensor::empty(sizes_with_last(all.tensor<"input">().sizes(), plan.plan.shape.out_features),
                                          torch_dtype(*plan.plan.dtypes.output), device);
  TorchRegion codes = float8 ? TorchRegion() : TorchRegion(plan.weight_bytes, device);
  TorchRegion saved_memory = keeps_saved ? TorchRegion(plan.saved_bytes(tokens), device) : TorchRegion();
  LinearSaved saved{.memory = saved_memory.region()};
  const LinearPass pass = keeps_saved ? LinearPass::training : LinearPass::inference;
  const std::size_t scratch_bytes = plan.plan.forward_scratch(tokens, pass, call.where.observes_values()).bytes;
  const StreamBlock scratch = call.stream.call_scratch(scratch_bytes);
  LinearForwardTensors tensors{
      .input = input.view,
      .weight = weight.view,
      .output = matrix(output.data(), *plan.plan.dtypes.output, tokens, plan.plan.shape.out_features, device),
      .scales = call.scales,
      .saved = keeps_saved ? &saved : nullptr,
      .scratch = {scratch.data(), scratch_bytes}};
  TorchMatrix bias;
  if (plan.plan.shape.bias) {
    bias = matrix_of(all.tensor<"bias">(), name_of(plan, "bias"));
    require_device(plan, "bias", bias.view, device);
    tensors.bias = bias.view;
  }
  TorchSide side(call.where, faster_with_side(plan.plan, tokens) && !float8 && plan.weight_bytes > 0);
  if (float8) {
    tensors.codes = float8->for_output();
  } else if (plan.weight_bytes > 0) {
    cast_weight_beside(plan.plan, call.backend, codes.region(), side, tensors);
  }
  linear_forward(plan.plan, call.backend, tensors, call.where.run());

  all.result<"output">() = std::move(output);
  if (keeps_saved) all.result<"saved">() = std::move(saved_memory).publish();
  if ((keep & kKeepCodes) != 0 && !float8) all.result<"codes">() = std::move(codes).publish();
  all.result<"amaxes">() = std::move(given).amaxes();
  call.where.note(all, all.result<"saved">());
  call.where.note(all, all.result<"codes">());
}

// ---- backward ------------------------------------------------------------------------------------------------------

void require_bytes(const TorchPlan& plan, const char* name, const MemoryRegion& region, std::size_t bytes) {
  if (region.bytes == bytes) return;
  throw Error(ErrorCode::invalid_argument, name_of(plan, name).text(),
              "has " + std::to_string(region.bytes) + " bytes, but a forward of this plan and size leaves " +
                  std::to_string(bytes) + ": give what that forward returned");
}

// What an earlier call has left, if it is given.
TorchRegion given_region(TorchTensor& tensor, Device device) {
  return tensor.given() ? TorchRegion(std::move(tensor), device) : TorchRegion();
}

// The gradients that are wanted; the others have no handle.
class Gradients {
 public:
  // Without makes_weight the caller gives the gradient of the weight.
  Gradients(const LinearPlan& plan, const LinearGradients& wants, const TorchTensor& grad_output, Device device,
            bool makes_weight) {
    const LinearShape& shape = plan.shape;
    const std::int64_t tokens = tokens_of(grad_output);
    const std::array<std::int64_t, 2> weight_sizes{shape.out_features, shape.in_features};
    const std::array<std::int64_t, 1> bias_sizes{shape.out_features};
    const auto make = [&](bool wanted, std::span<const std::int64_t> sizes, Dtype dtype) {
      return wanted ? TorchTensor::empty(sizes, torch_dtype(dtype), device) : TorchTensor();
    };
    const auto view = [&](const TorchTensor& of, std::int64_t rows, std::int64_t cols, Dtype dtype) {
      return matrix(of.data(), dtype, rows, cols, device);
    };
    input = make(wants.input, sizes_with_last(grad_output.sizes(), shape.in_features), plan.dtypes.input);
    weight = make(wants.weight && makes_weight, weight_sizes, *plan.dtypes.weight);
    bias = make(wants.bias, bias_sizes, *plan.dtypes.bias);
    if (wants.input) input_view = view(input, tokens, shape.in_features, plan.dtypes.input);
    if (wants.weight && makes_weight)
      weight_view = view(weight, shape.out_features, shape.in_features, *plan.dtypes.weight);
    if (wants.bias) bias_view = view(bias, 1, shape.out_features, *plan.dtypes.bias);
  }

  TorchTensor input, weight, bias;
  Tensor input_view{}, weight_view{}, bias_view{};
};

using Backward = TorchArgumentsOf<kLinearBackward>;

// The weight for grad_input: its codes, or the weight itself where the plan reads it again.
struct WeightOperand {
  WeightOperand(const TorchPlan& plan, Backward& all, const Call& call, LinearBackwardTensors& tensors) {
    const Device device = call.device;
    if (all.tensor<"weight_scale_inv">().given()) {
      const Float8Weight float8(plan.plan, plan.frozen, all.tensor<"weight">(), all.tensor<"weight_scale_inv">(),
                                device);
      codes = TorchRegion(float8.bytes(), device);
      tensors.codes = float8.for_grad_input(call.backend, call.stream, codes.region().data);
    } else if (plan.reads_weight()) {
      matrix = matrix_of(all.tensor<"weight">(), name_of(plan, "weight"));
      if (!plan.casts_whole_weight_again) {
        tensors.weight = matrix.view;
        return;
      }
      require_device(plan, "weight", matrix.view, device);
      codes = TorchRegion(plan.weight_bytes, device);
      tensors.codes =
          cast_weight(plan.plan, call.backend, {.weight = matrix.view, .into = codes.region()}, call.where.run());
    } else if (plan.weight_bytes > 0) {
      codes = given_region(all.tensor<"codes">(), device);
      require_bytes(plan, "codes", codes.region(), plan.weight_bytes);
      tensors.codes = weight_codes(plan.plan, codes.region(), device);
    }
  }

  TorchMatrix matrix{};
  TorchRegion codes{};
};

void backward(Backward& all) {
  const TorchPlan& plan = all.plan(torch_plans(), all.integer<"plan">());
  const TorchTensor& main_grad = all.tensor<"main_grad">();
  const std::int64_t bits = asked(all.integer<"wants">(), kWeight, main_grad);
  const LinearGradients wants{
      .input = (bits & kInput) != 0, .weight = (bits & kWeight) != 0, .bias = (bits & kBias) != 0};
  const bool accumulates = wants.weight && main_grad.given();
  const TorchTensor& gradient = all.tensor<"grad_output">();
  const TorchMatrix grad_output = matrix_or_element_of(gradient, name_of(plan, "grad_output"));
  const std::int64_t tokens = tokens_of(gradient);
  Call call(plan, grad_output.view.device, all, tokens);
  GivenScales given(call, {{{&LinearScales::grad_output, "scale of grad_output", all.tensor<"grad_output_scale">()},
                            {&LinearScales::weight, "scale of weight", all.tensor<"weight_scale">()}}});

  const TorchRegion saved_memory = given_region(all.tensor<"saved">(), call.device);
  if (wants.weight) require_bytes(plan, "saved", saved_memory.region(), plan.saved_bytes(tokens));
  const LinearSaved saved{.memory = saved_memory.region(), .plan = plan.plan.identity, .tokens = tokens, .kept = true};
  Gradients gradients(plan.plan, wants, gradient, call.device, !accumulates);
  if (accumulates) gradients.weight_view = main_grad_of(plan.plan, main_grad, call.device);
  LinearBackwardTensors tensors{.saved = &saved,
                                .grad_output = grad_output.view,
                                .grad_input = gradients.input_view,
                                .grad_weight = gradients.weight_view,
                                .grad_bias = gradients.bias_view,
                                .accumulate = accumulates,
                                .scales = call.scales};
  TorchMatrix input;
  if (wants.weight && plan.plan.grad_weight_reads_input()) {
    input = matrix_of(all.tensor<"input">(), name_of(plan, "input"));
    tensors.input = input.view;
  }
  std::optional<WeightOperand> weight;
  if (wants.input) weight.emplace(plan, all, call, tensors);
  const bool expands = expands_grad_output(plan.plan, tensors);
  const std::size_t scratch_bytes =
      plan.plan.backward_scratch(tokens, wants, call.where.observes_values(), expands).bytes;
  const StreamBlock scratch = call.stream.call_scratch(scratch_bytes);
  tensors.scratch = {scratch.data(), scratch_bytes};
  TorchSide side(call.where, faster_with_side(plan.plan, tokens) && wants.input && wants.weight,
                 [&] { return multiplies_together(plan.plan, call.backend, tensors); });
  linear_backward(plan.plan, call.backend, tensors, call.where.run(side.stream()));

  all.result<"grad_input">() = std::move(gradients.input);
  all.result<"grad_weight">() = std::move(gradients.weight);
  all.result<"grad_bias">() = std::move(gradients.bias);
  all.result<"amaxes">() = std::move(given).amaxes();
}

constexpr std::array kOperators{kTorchOperator<kLinearForward, forward>, kTorchOperator<kLinearBackward, backward>};

// ---- plans ---------------------------------------------------------------------------------------------------------

// Returns (number, saved_constant, saved_per_128_tokens, weight_bytes, backward reads input, backward reads weight).
// `weight_again`: backward casts the weight once more, and forward keeps none of its codes.
nb::tuple add_plan(LinearConfig config, std::int64_t in_features, std::int64_t out_features,
                   const std::array<std::optional<std::string>, 3>& dtypes, bool grad_weight, bool weight_again) {
  weight_again = weight_again && is_float8(config.grad_input);
  if (weight_again) config = casting_weight_again(config);
  const auto& [input, weight, bias] = dtypes;
  LinearPlanOptions options{
      .name = placeholder(0),
      .config = config,
      .shape = {.in_features = in_features, .out_features = out_features, .bias = bias.has_value()},
      .dtypes = {.input = dtype_of(input.value_or(""), "input"), .weight = dtype_of(weight.value_or(""), "weight")},
      .grad_weight = grad_weight};
  if (bias) options.dtypes.bias = dtype_of(*bias, "bias");
  TorchPlans& plans = torch_plans();
  const std::int64_t number = plans.add(linear_plan(options), weight_again);
  const TorchPlan& plan = *plans.at(number).plan;
  return nb::make_tuple(number, plan.saved_constant, plan.saved_per_unit, plan.weight_bytes,
                        grad_weight && plan.plan.grad_weight_reads_input(), plan.reads_weight());
}

// How an operand is cast, from its dtype and whether it has a scale for each row; no dtype: it is not.
using CastText = std::pair<std::string, bool>;

// The casts of input, weight and grad_output in the GEMMs that read them first, and then in the others. `given`: is
// the scale of each of these three tensors given by the caller of the operators?
LinearConfig config_of(const std::array<CastText, 6>& casts, bool pow2, const std::array<bool, 3>& fast_accumulation,
                       const std::array<bool, 3>& given) {
  const auto cast = [&](std::size_t at) -> std::optional<Cast> {
    const auto& [dtype, rows] = casts[at];
    if (dtype.empty()) return std::nullopt;
    const bool is_given = given[at % given.size()];
    return Cast{.dtype = dtype_of(dtype, "cast"),
                .granularity = rows ? kRowwise : kTensorwise,
                .pow2 = pow2 && !is_given,
                .scaling = is_given ? Scaling::delayed : Scaling::dynamic};
  };
  LinearConfig config{.output = {.a = cast(0), .b = cast(1), .fast_accumulation = fast_accumulation[0]},
                      .grad_input = {.a = cast(2), .b = cast(4), .fast_accumulation = fast_accumulation[1]},
                      .grad_weight = {.a = cast(5), .b = cast(3), .fast_accumulation = fast_accumulation[2]}};
  for (GemmConfig* gemm : {&config.output, &config.grad_input, &config.grad_weight}) {
    gemm->fast_accumulation = gemm->fast_accumulation && is_float8(*gemm);
  }
  return config;
}

// The plan of a layer whose weight is codes and factors, as checkpoints have them, and is not trained. The recipe must
// read the weight's factors in both directions (docs/checkpoints.md). `input` and `bias` are dtypes; an empty `bias` is
// none.
std::int64_t add_frozen_plan(const std::string& recipe_name, const std::string& code_dtype, std::int64_t in_features,
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
  return torch_plans().add_frozen(linear_plan(options));
}

const TorchFamily kFamily(kOperators, [](nb::module_& module) {
  module.def(
      "torch_linear_plan",
      [](const std::string& recipe_name, std::int64_t in_features, std::int64_t out_features,
         const std::array<std::optional<std::string>, 3>& dtypes, bool grad_weight, bool weight_again) {
        return add_plan(recipe(recipe_name), in_features, out_features, dtypes, grad_weight, weight_again);
      },
      "recipe"_a, "in_features"_a, "out_features"_a, "dtypes"_a, "grad_weight"_a, "weight_again"_a);
  module.def(
      "torch_linear_plan_of_casts",
      [](const std::array<CastText, 6>& casts, bool pow2, const std::array<bool, 3>& fast_accumulation,
         bool weight_again, const std::array<bool, 3>& given, std::int64_t in_features, std::int64_t out_features,
         const std::array<std::optional<std::string>, 3>& dtypes, bool grad_weight) {
        return add_plan(config_of(casts, pow2, fast_accumulation, given), in_features, out_features, dtypes,
                        grad_weight, weight_again);
      },
      "casts"_a, "pow2"_a, "fast_accumulation"_a, "weight_again"_a, "given"_a, "in_features"_a, "out_features"_a,
      "dtypes"_a, "grad_weight"_a);
  module.def("torch_frozen_plan", &add_frozen_plan, "recipe"_a, "code_dtype"_a, "in_features"_a, "out_features"_a,
             "input"_a, "bias"_a);
  bind_names(module, "torch_name_linear", torch_plans());
});

}  // namespace
}  // namespace ingot::python
