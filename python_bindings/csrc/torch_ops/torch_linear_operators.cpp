// The operators of a linear layer: forward and backward (nn/linear/linear_functions.h), with a weight in high precision
// or as FP8 codes. torch_split_operators.cpp has the parts of forward for
// compilers. Autograd and fake kernels are Python's (ingot/torch).
#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "arrays/arrays.h"
#include "ingot/nn/dist/gathered_codes.h"
#include "ingot/nn/dist/parallel_scales.h"
#include "ingot/nn/linear/linear_functions.h"
#include "ingot/nn/recipe/recipes.h"
#include "ingot/runtime/context/backend.h"
#include "torch_abi/torch_codes_operand.h"
#include "torch_abi/torch_memory.h"
#include "torch_ops/torch_module_plans.h"
#include "torch_ops/torch_module_tensors.h"
#include "torch_ops/torch_operator.h"
#include "torch_ops/torch_run.h"

namespace ingot::python {
namespace {

namespace nb = nanobind;
using namespace nb::literals;

// Scales that the caller gives, f32 of one element, and maxima of what is cast with them. A scale may have no handle.
struct GivenScale {
  LinearScale LinearScales::*scale;
  const char* name;
  const TorchTensor& tensor;
};

// The scales of a call, and its maxima, which are cleared; no maxima where no scale is given.
struct CallScales {
  CallScales(const LinearPlan& plan, const TorchRun& run, const std::array<GivenScale, 2>& given)
      : scales(run.constants(plan)) {
    if (!given[0].tensor.given() && !given[1].tensor.given()) return;
    const Device device = run.device();
    amaxes = TorchTensor::empty(std::array{static_cast<std::int64_t>(given.size())}, torch_dtype(Dtype::f32), device);
    auto* amax = static_cast<float*>(amaxes.data());
    run.backend().device_api().fill_zero(amax, given.size() * sizeof(float), run.stream());
    for (const auto& [scale, name, tensor] : given) {
      if (tensor.given()) {
        if (tensor.elements() != 1 || tensor.dtype() != Dtype::f32 || tensor.device() != device) {
          throw Error(ErrorCode::invalid_argument, TensorName{plan.subject, name}.text(),
                      "must be float32 of one element on the layer's device");
        }
        scales.*scale = {.scale = vector(tensor.data(), Dtype::f32, 1, device),
                         .amax = vector(amax, Dtype::f32, 1, device)};
      }
      ++amax;
    }
  }

  LinearScales scales;
  TorchTensor amaxes{};
};

// The input, in high precision, or as codes for a plan that is made for them; of codes `view` has the shape alone.
struct LayerInput {
  LayerInput(const LinearPlan& plan, const TorchTensor& tensor, const TorchTensor& scale_inv) {
    if (scale_inv.given() != plan.given_input.any) {
      throw Error(ErrorCode::invalid_argument, TensorName{plan.subject, "input_scale_inv"}.text(),
                  plan.given_input.any
                      ? "is missing, but the plan takes the input as FP8 codes: give both"
                      : "is given, but the plan casts its input itself, or reads it in high precision: "
                        "give that, without scale_inv");
    }
    if (!scale_inv.given()) {
      values = matrix_of(tensor, {plan.subject, "input"});
      view = values.view;
      return;
    }
    codes.emplace(plan, Float8RowsNames{"input", "input_scale_inv"}, plan.given_input.spec, plan.shape.in_features,
                  tensor, scale_inv);
    view = matrix(nullptr, plan.dtypes.input, codes->codes().rows, codes->codes().cols, codes->device());
  }

  Float8View for_output() const {
    if (!codes) return {};
    return {.codes = codes->codes(), .scale_inv = codes->scale_inv()};
  }
  // For grad_weight. The transposed codes live as long as this object.
  Float8View for_grad_weight(const TorchRun& run) {
    made = TorchRegion(codes->transposed_bytes(), codes->device());
    return {.transposed = codes->transposed(run.backend(), run.stream(), made.region().data),
            .transposed_scale_inv = codes->scale_inv()};
  }

  TorchMatrix values{};
  std::optional<Float8Rows> codes{};
  TorchRegion made{};
  Tensor view{};
};

// ---- forward -------------------------------------------------------------------------------------------------------

void forward(TorchArgumentsOf<kLinearForward>& all) {
  const TorchPlan& of = all.plan(plans_of<TorchPlan>(), all.integer<"plan">());
  const LinearPlan& plan = of.plan;
  const LayerInput input(plan, all.tensor<"input">(), all.tensor<"input_scale_inv">());
  const Device device = input.view.device;
  const TorchWeight weight{&all.tensor<"weight">(), &all.tensor<"weight_scale_inv">()};
  const std::int64_t tokens = input.view.rows;
  const TorchRun run(device, all, tokens);
  const LayerOperands operands(plan, weight, all.tensor<"bias">(), run);
  CallScales given(plan, run,
                   {{{&LinearScales::input, "scale of input", all.tensor<"input_scale">()},
                     {&LinearScales::weight, "scale of weight", all.tensor<"weight_scale">()}}});
  const std::int64_t keep = all.integer<"keep">();
  const bool keeps_saved = (keep & kKeepSaved) != 0;

  TorchResult output(true, sizes_with_last(all.tensor<"input">().sizes(), plan.shape.out_features), *plan.dtypes.output,
                     device);
  TorchRegion codes(of.kept(tokens, {&weight, 1}).all_codes(), device);
  TorchRegion saved_memory = keeps_saved ? TorchRegion(of.saved.bytes(tokens), device) : TorchRegion();
  LinearSaved saved{.memory = saved_memory.region()};
  const LinearPass pass = keeps_saved ? LinearPass::training : LinearPass::inference;
  const std::size_t scratch_bytes = plan.forward_scratch(tokens, pass, run.observes_values()).bytes;
  const StreamBlock scratch = run.stream().call_scratch(scratch_bytes);
  LinearForwardTensors tensors{.input = input.view,
                               .weight = operands.weight.view,
                               .bias = operands.bias.view,
                               .output = output.view,
                               .codes = operands.codes,
                               .scales = given.scales,
                               .saved = keeps_saved ? &saved : nullptr,
                               .scratch = {scratch.data(), scratch_bytes},
                               .given_input = input.for_output()};
  const bool casts = codes.region().bytes > 0;
  TorchSide side(run, faster_with_side(plan, tokens) && casts);
  if (casts) cast_weight_beside(plan, run.backend(), codes.region(), side, tensors);
  linear_forward(plan, run.backend(), tensors, run.run());

  all.result<"output">() = std::move(output.tensor);
  if (keeps_saved) all.result<"saved">() = std::move(saved_memory).publish();
  if ((keep & kKeepCodes) != 0 && !weight.is_codes()) all.result<"codes">() = std::move(codes).publish();
  all.result<"amaxes">() = std::move(given.amaxes);
  run.note(all, all.result<"saved">());
  run.note(all, all.result<"codes">());
}

// ---- backward ------------------------------------------------------------------------------------------------------

// grad_output, in high precision, as one element for all, or as codes; of codes `view` has the shape alone.
struct LayerGradOutput {
  LayerGradOutput(const LinearPlan& plan, const LinearGradients& wants, const TorchTensor& tensor,
                  const TorchTensor& scale_inv) {
    if (!scale_inv.given()) {
      values = matrix_or_element_of(tensor, {plan.subject, "grad_output"});
      view = values.view;
      return;
    }
    if (!gathers_grad_output_codes(plan, wants)) {
      throw Error(ErrorCode::invalid_argument, TensorName{plan.subject, "grad_output_scale_inv"}.text(),
                  "is given, but no one set of codes serves these gradients (of two GEMMs with other scales, of one in "
                  "high precision, of folded scale_inv, of a bias): give grad_output in high precision");
    }
    codes.emplace(plan, Float8RowsNames{"grad_output", "grad_output_scale_inv"}, plan.grad_output_of(wants).cast.spec,
                  plan.shape.out_features, tensor, scale_inv);
    view = matrix(nullptr, *plan.dtypes.output, codes->codes().rows, codes->codes().cols, codes->device());
  }

  TorchMatrix values{};
  std::optional<Float8Rows> codes{};
  Tensor view{};
};

// The input, where the gradient of the weight reads it: its values, or the codes that forward was given.
void give_input(const LinearPlan& plan, LayerInput& input, const TorchRun& run, LinearBackwardTensors& tensors) {
  if (input.codes) {
    tensors.given_input = input.for_grad_weight(run);
  } else if (plan.grad_weight_reads_input()) {
    tensors.input = input.view;
  }
}

bool reads_input(const LinearPlan& plan, const LinearGradients& wants) {
  return wants.weight && (plan.grad_weight_reads_input() || plan.given_input.any);
}

void backward(TorchArgumentsOf<kLinearBackward>& all) {
  const TorchPlan& of = all.plan(plans_of<TorchPlan>(), all.integer<"plan">());
  const LinearPlan& plan = of.plan;
  const TorchTensor& main_grad = all.tensor<"main_grad">();
  const std::int64_t bits = asked(all.integer<"wants">(), kWeight, main_grad);
  const LinearGradients wants{
      .input = (bits & kInput) != 0, .weight = (bits & kWeight) != 0, .bias = (bits & kBias) != 0};
  const TorchTensor& gradient = all.tensor<"grad_output">();
  const LayerGradOutput grad_output(plan, wants, gradient, all.tensor<"grad_output_scale_inv">());
  const Device device = grad_output.view.device;
  const std::int64_t tokens = tokens_of(gradient);
  const TorchRun run(device, all, tokens);
  CallScales given(plan, run,
                   {{{&LinearScales::grad_output, "scale of grad_output", all.tensor<"grad_output_scale">()},
                     {&LinearScales::weight, "scale of weight", all.tensor<"weight_scale">()}}});

  const TorchRegion saved_memory =
      wants.weight ? left_by_forward(all.tensor<"saved">(), of.saved.bytes(tokens), {plan.subject, "saved"}, device)
                   : given_region(all.tensor<"saved">(), device);
  const LinearSaved saved{.memory = saved_memory.region(), .plan = plan.identity, .tokens = tokens, .kept = true};
  TorchResult grad_input(wants.input, sizes_with_last(gradient.sizes(), plan.shape.in_features), plan.dtypes.input,
                         device);
  LayerGradients gradients(plan, wants.weight, wants.bias, device, main_grad);
  LinearBackwardTensors tensors{.saved = &saved,
                                .grad_output = grad_output.view,
                                .grad_input = grad_input.view,
                                .grad_weight = gradients.weight.view,
                                .grad_bias = gradients.bias.view,
                                .accumulate = wants.weight && main_grad.given(),
                                .scales = given.scales,
                                .grad_output_is_cast = grad_output.codes.has_value()};
  std::optional<LayerInput> input;
  if (reads_input(plan, wants)) {
    give_input(plan, input.emplace(plan, all.tensor<"input">(), all.tensor<"input_scale_inv">()), run, tensors);
  }
  const TorchWeight given_weight{&all.tensor<"weight">(), &all.tensor<"weight_scale_inv">()};
  TorchRegion kept_codes;
  if (wants.input && !given_weight.is_codes() && !of.reads_weight()) {
    kept_codes = left_by_forward(all.tensor<"codes">(), of.weight_bytes[0], {plan.subject, "codes"}, device);
  }
  const WeightOfBackward weight(plan, wants.input, given_weight, kept_codes.region(), of.casts_whole_weights_again,
                                run);
  tensors.weight = weight.matrix.view;
  tensors.codes = weight.codes;
  const bool expands = expands_grad_output(plan, tensors);
  const std::size_t scratch_bytes = plan.backward_scratch(tokens, wants, run.observes_values(), expands).bytes;
  const StreamBlock scratch = run.stream().call_scratch(scratch_bytes);
  tensors.scratch = {scratch.data(), scratch_bytes};
  if (grad_output.codes) {
    grad_output.codes->copy_to(linear_grad_output_codes(plan, tokens, wants, tensors.scratch, device), run.backend(),
                               run.stream());
  }
  TorchSide side(run, faster_with_side(plan, tokens) && wants.input && wants.weight,
                 [&] { return multiplies_together(plan, run.backend(), tensors); });
  linear_backward(plan, run.backend(), tensors, run.run(side.stream()));

  all.result<"grad_input">() = std::move(grad_input.tensor);
  all.result<"grad_weight">() = std::move(gradients.weight.tensor);
  all.result<"grad_bias">() = std::move(gradients.bias.tensor);
  all.result<"amaxes">() = std::move(given.amaxes);
}

constexpr std::array kLinearOperators{kTorchOperator<kLinearForward, forward>,
                                      kTorchOperator<kLinearBackward, backward>};

// ---- plans ---------------------------------------------------------------------------------------------------------

// The dtypes of input, weight and bias; no bias: none.
using DtypeTexts = std::array<std::optional<std::string>, 3>;

// What a plan is made of besides its config and its sizes. weight_again: backward casts the weight once more, and
// forward keeps none of its codes. divided: other ranks have parts of input, weight, grad_output, so that one scale of
// all parts is given with each call. given_input: each call is given the input as FP8 codes.
struct PlanText {
  DtypeTexts dtypes;
  bool grad_weight = false;
  bool weight_again = false;
  std::array<bool, 3> divided{};
  bool given_input = false;
};

// Returns (number, saved_constant, saved_per_128_tokens, weight_bytes, backward reads input, backward reads weight).
nb::tuple add_linear_plan(const LinearConfig& of, std::int64_t in_features, std::int64_t out_features,
                          const PlanText& text) {
  const auto& [dtypes, grad_weight, asks_again, divided, given_input] = text;
  const LinearConfig config =
      with_given_scales(of, {.input = divided[0], .weight = divided[1], .grad_output = divided[2]});
  const bool weight_again = asks_again && is_float8(config.grad_input);
  const auto& [input, weight, bias] = dtypes;
  TorchPlan plan(
      linear_plan({.name = placeholder(0),
                   .config = weight_again ? casting_weight_again(config) : config,
                   .shape = {.in_features = in_features, .out_features = out_features, .bias = bias.has_value()},
                   .dtypes = linear_dtypes(input.value_or(""), weight, bias),
                   .grad_weight = grad_weight,
                   .given_input = given_input}),
      weight_again);
  const auto [constant, per_unit] = plan.saved;
  const std::size_t weight_bytes = plan.weight_bytes[0];
  const bool reads_input = grad_weight && plan.plan.grad_weight_reads_input();
  const bool reads_weight = plan.reads_weight();
  return nb::make_tuple(add_linear(std::move(plan)), constant, per_unit, weight_bytes, reads_input, reads_weight);
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

// The plan of a layer whose weight is codes and scale_inv, as checkpoints have them, and is not trained. The recipe
// must read the weight's scale_inv in both directions (docs/checkpoints.md). `input` and `bias` are dtypes.
std::int64_t add_frozen_plan(const std::string& recipe_name, const std::string& code_dtype, std::int64_t in_features,
                             std::int64_t out_features, const std::string& input,
                             const std::optional<std::string>& bias) {
  LinearConfig config = recipe(recipe_name);
  config.grad_weight = {};  // and so none of its casts
  config.output.b->dtype = config.grad_input.b->dtype = dtype_of(code_dtype, "codes");
  if (config.input == OtherCodes::folded) config.input = OtherCodes::together;
  return add_linear(
      {linear_plan({.name = placeholder(0),
                    .config = config,
                    .shape = {.in_features = in_features, .out_features = out_features, .bias = bias.has_value()},
                    .dtypes = linear_dtypes(input, std::nullopt, bias),
                    .grad_weight = false}),
       false},
      true);
}

// The codes by which ranks may send a tensor whose rows they divide: their format, whether each row has its scale, and
// whether scales are powers of two; None: they send values.
nb::object gathered_codes(const LinearCast& cast, bool as_codes) {
  if (!as_codes) return nb::none();
  return nb::make_tuple(std::string(name(cast.spec.out)), cast.spec.scale == kRowwise, cast.spec.pow2);
}

// gathered_codes() of the input and of grad_output, the latter by the gradients of the input and the weight that are
// wanted: the first, the second, both.
nb::tuple gathers(std::int64_t number) {
  const LinearPlan& plan = plans_of<TorchPlan>().at(number).plan->plan;
  const auto of_grad_output = [&](bool input, bool weight) {
    const LinearGradients wants{.input = input, .weight = weight, .bias = false};
    return gathered_codes(plan.grad_output_of(wants).cast, gathers_grad_output_codes(plan, wants));
  };
  return nb::make_tuple(
      gathered_codes(plan.input_of(LinearPass::training), gathers_input_codes(plan, LinearPass::training)),
      of_grad_output(true, false), of_grad_output(false, true), of_grad_output(true, true));
}

// The formats of input, weight and grad_output whose scale is given with each call, and whether it is a power of two;
// None: it is not given.
nb::tuple given_scales(std::int64_t number) {
  const LinearScaling& scaling = plans_of<TorchPlan>().at(number).plan->plan.scaling;
  const auto of = [](const std::optional<Cast>& cast) -> nb::object {
    if (!cast || cast->scaling == Scaling::dynamic) return nb::none();
    return nb::make_tuple(std::string(name(cast->dtype)), cast->pow2);
  };
  return nb::make_tuple(of(scaling.input), of(scaling.weight), of(scaling.grad_output));
}

const TorchFamily kLinearFamily(kLinearOperators, [](nb::module_& module) {
  module.def(
      "torch_linear_plan",
      [](const std::string& recipe_name, std::int64_t in_features, std::int64_t out_features, const DtypeTexts& dtypes,
         bool grad_weight, bool weight_again, const std::array<bool, 3>& divided, bool given_input) {
        return add_linear_plan(recipe(recipe_name), in_features, out_features,
                               {dtypes, grad_weight, weight_again, divided, given_input});
      },
      "recipe"_a, "in_features"_a, "out_features"_a, "dtypes"_a, "grad_weight"_a, "weight_again"_a, "divided"_a,
      "given_input"_a);
  module.def(
      "torch_linear_plan_of_casts",
      [](const std::array<CastText, 6>& casts, bool pow2, const std::array<bool, 3>& fast_accumulation,
         bool weight_again, const std::array<bool, 3>& given, std::int64_t in_features, std::int64_t out_features,
         const DtypeTexts& dtypes, bool grad_weight, const std::array<bool, 3>& divided, bool given_input) {
        return add_linear_plan(config_of(casts, pow2, fast_accumulation, given), in_features, out_features,
                               {dtypes, grad_weight, weight_again, divided, given_input});
      },
      "casts"_a, "pow2"_a, "fast_accumulation"_a, "weight_again"_a, "given"_a, "in_features"_a, "out_features"_a,
      "dtypes"_a, "grad_weight"_a, "divided"_a, "given_input"_a);
  module.def("torch_linear_gathers", &gathers, "plan"_a);
  module.def("torch_linear_given_scales", &given_scales, "plan"_a);
  module.def("torch_frozen_plan", &add_frozen_plan, "recipe"_a, "code_dtype"_a, "in_features"_a, "out_features"_a,
             "input"_a, "bias"_a.none());
  bind_names(module, "linear", plans_of<TorchPlan>());
});

}  // namespace
}  // namespace ingot::python
