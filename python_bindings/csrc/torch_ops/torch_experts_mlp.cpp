// The operators of a mixture of experts' MLPs (nn/modules/experts_mlp.h). Autograd and fake kernels are Python's
// (ingot/torch/_experts_mlp.py), as are the indices that say which rows a token has.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "ingot/nn/linear/memory_places.h"
#include "ingot/nn/modules/experts_mlp.h"
#include "ingot/nn/recipe/recipes.h"
#include "ingot/runtime/context/backend.h"
#include "torch_abi/torch_memory.h"
#include "torch_abi/torch_weight_operand.h"
#include "torch_ops/torch_module_plans.h"
#include "torch_ops/torch_module_tensors.h"
#include "torch_ops/torch_operator.h"
#include "torch_ops/torch_run.h"

namespace ingot::python {
namespace {

namespace nb = nanobind;
using namespace nb::literals;

// What a forward leaves of the weights for its backward: their codes or, of weights that are cast again, their maxima.
struct ExpertsLeft {
  std::size_t up_bytes = 0, down_begin = 0, down_bytes = 0, bytes = 0;

  static ExpertsLeft of(const ExpertsMlpPlan& plan) {
    const auto bytes_of = [](const GroupedLinearPlan& layer) {
      if (!layer.weight_again.any) return layer.weight_memory().bytes;
      return static_cast<std::size_t>(layer.weight_amax_count()) * sizeof(float);
    };
    ExpertsLeft left{.up_bytes = bytes_of(plan.up), .down_bytes = bytes_of(plan.down)};
    MemoryPlaces places;
    places.region(left.up_bytes);
    left.down_begin = places.region(left.down_bytes);
    left.bytes = places.bytes();
    return left;
  }
};

struct ExpertsPlan {
  ExpertsPlan(ExpertsMlpPlan of, bool all)
      : plan(std::move(of)), saved(TorchSavedSize::of(plan)), left(ExpertsLeft::of(plan)), all_have_experts(all) {
    const auto size_of = [&](std::size_t ExpertsMlpKeptMemory::*bytes) {
      return TorchSavedSize::of_bytes([&](std::int64_t rows) { return plan.kept_memory(rows).*bytes; });
    };
    kept_input = size_of(&ExpertsMlpKeptMemory::input_bytes);
    kept = {size_of(&ExpertsMlpKeptMemory::up_bytes), size_of(&ExpertsMlpKeptMemory::down_bytes)};
  }

  // The subject of messages.
  const std::string& subject() const { return plan.subject; }
  // [experts, out_features, in_features]
  static std::array<std::int64_t, 3> weight_sizes(const GroupedLinearPlan& layer) {
    return {layer.experts, layer.rows.shape.out_features, layer.rows.shape.in_features};
  }

  ExpertsMlpPlan plan;
  TorchSavedSize saved;
  TorchSavedSize kept_input{};           // by backward, for the gradient of the input
  std::array<TorchSavedSize, 2> kept{};  // and of each layer's weights
  ExpertsLeft left;
  bool all_have_experts;
};

template <class Arguments>
ExpertsRouting routing_of(const ExpertsPlan& of, Arguments& all, const TorchMatrix& weights, Device device) {
  const auto index = [&](const TorchTensor& tensor, const char* name) -> RowIndex {
    return {.data = int32_of(tensor, {of.subject(), name}, device), .rows = tensor.elements(), .device = device};
  };
  const TorchTensor& ends = all.template tensor<"ends">();
  return {
      .tokens = index(all.template tensor<"tokens">(), "tokens"),
      .rows = index(all.template tensor<"rows">(), "rows"),
      .weights = weights.view,
      .ends = {.data = int32_of(ends, {of.subject(), "ends"}, device), .experts = ends.elements(), .device = device},
      .all_have_experts = of.all_have_experts};
}

template <class Arguments>
TorchWeight up_weight_of(Arguments& all) {
  return {&all.template tensor<"up_weight">(), &all.template tensor<"up_weight_scale_inv">()};
}
template <class Arguments>
TorchWeight down_weight_of(Arguments& all) {
  return {&all.template tensor<"down_weight">(), &all.template tensor<"down_weight_scale_inv">()};
}

// f32 of a region, or none.
Tensor floats_in(const MemoryRegion& region, Device device) {
  const auto count = static_cast<std::int64_t>(region.bytes / sizeof(float));
  return region.data == nullptr || count == 0 ? Tensor{} : vector(region.data, Dtype::f32, count, device);
}

struct ExpertsRegions {
  MemoryRegion up{}, down{};
};
ExpertsRegions regions_of(const ExpertsLeft& left, const MemoryRegion& all) {
  return {part_of(all, 0, left.up_bytes), part_of(all, left.down_begin, left.down_bytes)};
}

void forward(TorchArgumentsOf<kExpertsMlpForward>& all) {
  const ExpertsPlan& of = all.plan(plans_of<ExpertsPlan>(), all.integer<"plan">());
  const ExpertsMlpPlan& plan = of.plan;
  const TorchTensor& tensor = all.tensor<"input">();
  const TorchMatrix input = matrix_of(tensor, {of.subject(), "input"});
  const Device device = input.view.device;
  const TorchMatrix router = operand_of(all.tensor<"router_weights">(), {of.subject(), "router_weights"}, device);
  const ExpertsRouting routing = routing_of(of, all, router, device);
  const std::int64_t rows = routing.tokens.rows;
  TorchCall run(device, all, rows);
  run.use(delayed_scales(all), 2, of.subject(), plan.up.experts);
  const std::int64_t keep = all.integer<"keep">();
  const bool keeps_saved = (keep & kKeepSaved) != 0;
  const bool leaves = (keep & kKeepCodes) != 0;
  TorchRegion left = leaves ? TorchRegion(of.left.bytes, device) : TorchRegion();
  const ExpertsRegions of_left = regions_of(of.left, left.region());
  // Codes that backward reads again are left; others live as long as this call.
  const auto codes_of = [&](const GroupedLinearPlan& layer, const TorchWeight& weight, const char* name,
                            const LinearScale& scale, const MemoryRegion& mine, TorchRegion& passing) {
    const TensorName named{of.subject(), name};
    if (weight.is_codes()) {
      return float8_experts(layer, WeightReader::output, named, *weight.tensor, *weight.scale_inv, device);
    }
    const TorchMatrix values = operand_of(*weight.tensor, named, device);
    const bool again = layer.weight_again.any;
    if (again || !leaves) passing = TorchRegion(layer.weight_memory().bytes, device);
    return cast_expert_weights(layer, run.backend(),
                               {.weight = values.view,
                                .into = again || !leaves ? passing.region() : mine,
                                .amax = again && leaves ? floats_in(mine, device) : Tensor{},
                                .scale = scale},
                               run.run());
  };
  TorchRegion up_codes, down_codes;
  ExpertsMlpForwardTensors tensors{.input = input.view, .routing = routing, .output = {}};
  tensors.up_scales = run.scales(plan.up.rows, 0);
  tensors.down_scales = run.scales(plan.down.rows, 1);
  tensors.up_codes = codes_of(plan.up, up_weight_of(all), "up_weight", tensors.up_scales.weight, of_left.up, up_codes);
  tensors.down_codes =
      codes_of(plan.down, down_weight_of(all), "down_weight", tensors.down_scales.weight, of_left.down, down_codes);

  TorchMatrix up_bias;
  if (plan.up.bias) up_bias = operand_of(all.tensor<"up_bias">(), {of.subject(), "up_bias"}, device);
  tensors.up_bias = up_bias.view;
  TorchResult output(true, tensor.sizes(), plan.up.rows.dtypes.input, device);
  tensors.output = output.view;
  TorchResult hidden(keeps_saved, std::array{rows, plan.hidden_columns()}, plan.up.rows.dtypes.input, device);
  tensors.hidden = hidden.view;
  TorchRegion saved_memory = keeps_saved ? TorchRegion(of.saved.bytes(rows), device) : TorchRegion();
  LinearSaved saved{.memory = saved_memory.region()};
  if (keeps_saved) tensors.saved = &saved;
  const LinearPass pass = keeps_saved ? LinearPass::training : LinearPass::inference;
  const std::size_t scratch_bytes = plan.forward_scratch(rows, pass, run.observes_values()).bytes;
  const StreamBlock scratch = run.stream().call_scratch(scratch_bytes);
  tensors.scratch = {scratch.data(), scratch_bytes};
  experts_mlp_forward(plan, run.backend(), tensors, run.run());

  all.result<"output">() = std::move(output.tensor);
  all.result<"hidden">() = std::move(hidden.tensor);
  if (keeps_saved) all.result<"saved">() = std::move(saved_memory).publish();
  if (leaves) all.result<"codes">() = std::move(left).publish();
  for (const TorchTensor* each : {&all.result<"hidden">(), &all.result<"saved">()}) run.note(all, *each);
}

ExpertsMlpGradients gradients_of(std::int64_t bits) {
  return {.input = (bits & kInput) != 0,
          .router = (bits & kRouter) != 0,
          .up_weight = (bits & weight_bit(0)) != 0,
          .down_weight = (bits & weight_bit(1)) != 0,
          .up_bias = (bits & kBias) != 0};
}

// Backward and the gradient of the input do not read what forward saved, but are of its plan and rows.
LinearSaved saved_without_memory(const ExpertsMlpPlan& plan, std::int64_t rows) {
  return {.plan = plan.identity, .tokens = rows, .kept = true};
}

// A layer's weights for the gradient of its input: values, codes that are given, or codes that forward left.
struct WeightOfExperts {
  WeightOfExperts() = default;
  WeightOfExperts(const ExpertsPlan& of, const GroupedLinearPlan& layer, const TorchWeight& weight, const char* name,
                  TorchTensor& codes, Device device) {
    if (codes.given() || !layer.weight_again.any) {
      left = left_by_forward(codes, of.left.bytes, {of.subject(), "codes"}, device);
    }
    const ExpertsRegions both = regions_of(of.left, left.region());
    const MemoryRegion& mine = &layer == &of.plan.up ? both.up : both.down;
    const TensorName named{of.subject(), name};
    if (weight.is_codes()) {
      operand.codes = float8_experts(layer, WeightReader::grad_input, named, *weight.tensor, *weight.scale_inv, device);
    } else if (!layer.weight_again.any) {
      operand.codes = expert_weight_codes(layer, mine, device);
    } else {
      values = operand_of(*weight.tensor, named, device);
      operand.weight = values.view;
      operand.weight_amax = floats_in(mine, device);
    }
  }

  ExpertsBackwardWeight operand{};
  TorchMatrix values{};
  TorchRegion left{};
};

void backward(TorchArgumentsOf<kExpertsMlpBackward>& all) {
  const ExpertsPlan& of = all.plan(plans_of<ExpertsPlan>(), all.integer<"plan">());
  const ExpertsMlpPlan& plan = of.plan;
  const ExpertsMlpGradients wants = gradients_of(all.integer<"wants">());
  const TorchTensor& gradient = all.tensor<"grad_output">();
  const TorchMatrix grad_output = matrix_of(gradient, {of.subject(), "grad_output"});
  const Device device = grad_output.view.device;
  const TorchMatrix router = operand_of(all.tensor<"router_weights">(), {of.subject(), "router_weights"}, device);
  const ExpertsRouting routing = routing_of(of, all, router, device);
  const std::int64_t rows = routing.tokens.rows;
  TorchCall run(device, all, rows);
  run.use(delayed_scales(all), 2, of.subject(), plan.up.experts);
  const LinearSaved saved = saved_without_memory(plan, rows);
  TorchRegion kept_input = wants.input ? TorchRegion(of.kept_input.bytes(rows), device) : TorchRegion();
  TorchRegion kept_up = wants.up_weight ? TorchRegion(of.kept[0].bytes(rows), device) : TorchRegion();
  TorchRegion kept_down = wants.down_weight ? TorchRegion(of.kept[1].bytes(rows), device) : TorchRegion();
  TorchMatrix hidden;
  WeightOfExperts down;
  if (wants.reaches_hidden()) {
    hidden = operand_of(all.tensor<"hidden">(), {of.subject(), "hidden"}, device);
    down = WeightOfExperts(of, plan.down, down_weight_of(all), "down_weight", all.tensor<"codes">(), device);
  }
  TorchResult grad_router(wants.router, all.tensor<"router_weights">().sizes(), Dtype::f32, device);
  TorchResult grad_up_bias(wants.up_bias, std::array{plan.up.experts, plan.hidden_columns()}, plan.up.bias_dtype(),
                           device);
  ExpertsMlpBackwardTensors tensors{.saved = &saved,
                                    .hidden = hidden.view,
                                    .routing = routing,
                                    .wants = wants,
                                    .grad_output = grad_output.view,
                                    .grad_router = grad_router.view,
                                    .grad_up_bias = grad_up_bias.view,
                                    .down = down.operand,
                                    .up_scales = run.scales(plan.up.rows, 0),
                                    .down_scales = run.scales(plan.down.rows, 1),
                                    .kept_input = kept_input.region(),
                                    .kept_up = kept_up.region(),
                                    .kept_down = kept_down.region()};
  tensors.down.scale = tensors.down_scales.weight;
  const std::size_t scratch_bytes = plan.backward_scratch(rows, wants).bytes;
  const StreamBlock scratch = run.stream().call_scratch(scratch_bytes);
  tensors.scratch = {scratch.data(), scratch_bytes};
  experts_mlp_backward(plan, run.backend(), tensors, run.run());
  all.result<"grad_router">() = std::move(grad_router.tensor);
  all.result<"grad_up_bias">() = std::move(grad_up_bias.tensor);
  if (wants.input) all.result<"kept_input">() = std::move(kept_input).publish();
  if (wants.up_weight) all.result<"kept_up">() = std::move(kept_up).publish();
  if (wants.down_weight) all.result<"kept_down">() = std::move(kept_down).publish();
}

void input_backward(TorchArgumentsOf<kExpertsMlpInputBackward>& all) {
  const ExpertsPlan& of = all.plan(plans_of<ExpertsPlan>(), all.integer<"plan">());
  const ExpertsMlpPlan& plan = of.plan;
  const TorchTensor& gradient = all.tensor<"grad_output">();
  const Device device = gradient.device().value_or(Device{});
  const std::int64_t rows = all.tensor<"tokens">().elements();
  TorchCall run(device, all, rows);
  run.use(delayed_scales(all), 2, of.subject(), plan.up.experts);
  const LinearSaved saved = saved_without_memory(plan, rows);
  const TorchRegion kept_input =
      left_by_forward(all.tensor<"kept_input">(), of.kept_input.bytes(rows), {of.subject(), "kept_input"}, device);
  TorchTensor& of_up = all.tensor<"kept_up">();
  const TorchRegion kept_up =
      of_up.given() ? left_by_forward(of_up, of.kept[0].bytes(rows), {of.subject(), "kept_up"}, device) : TorchRegion();
  const WeightOfExperts up(of, plan.up, up_weight_of(all), "up_weight", all.tensor<"codes">(), device);
  const TorchTensor& of_tokens = all.tensor<"rows">();
  const TorchTensor& ends = all.tensor<"ends">();
  TorchResult grad_input(true, gradient.sizes(), plan.up.rows.dtypes.input, device);
  ExpertsMlpInputGradientTensors tensors{
      .saved = &saved,
      .rows = {.data = int32_of(of_tokens, {of.subject(), "rows"}, device),
               .rows = of_tokens.elements(),
               .device = device},
      .ends = {.data = int32_of(ends, {of.subject(), "ends"}, device), .experts = ends.elements(), .device = device},
      .wants = gradients_of(all.integer<"wants">()),
      .kept_input = kept_input.region(),
      .kept_up = kept_up.region(),
      .up = up.operand,
      .grad_input = grad_input.view};
  tensors.up.scale = run.scales(plan.up.rows, 0).weight;
  const std::size_t scratch_bytes = plan.input_gradient_scratch(rows).bytes;
  const StreamBlock scratch = run.stream().call_scratch(scratch_bytes);
  tensors.scratch = {scratch.data(), scratch_bytes};
  experts_mlp_input_gradient(plan, run.backend(), tensors, run.run());
  all.result<"grad_input">() = std::move(grad_input.tensor);
}

void weight_backward(TorchArgumentsOf<kExpertsMlpWeightBackward>& all) {
  const ExpertsPlan& of = all.plan(plans_of<ExpertsPlan>(), all.integer<"plan">());
  const bool is_up = all.integer<"layer">() == 0;
  const GroupedLinearPlan& layer = is_up ? of.plan.up : of.plan.down;
  const std::int64_t wants = all.integer<"wants">();
  const std::int64_t mine = weight_bit(is_up ? 0 : 1);
  TorchTensor& main_grad = all.tensor<"main_grad">();
  if ((asked(wants, mine, main_grad) & mine) == 0) return;
  const Device device = all.tensor<"tokens">().device().value_or(Device{});
  const std::int64_t rows = all.tensor<"tokens">().elements();
  const TorchRun run(device, all, rows);
  const TorchRegion memory =
      left_by_forward(all.tensor<"saved">(), of.saved.bytes(rows), {of.subject(), "saved"}, device);
  const TorchRegion kept =
      left_by_forward(all.tensor<"kept">(), of.kept[is_up ? 0 : 1].bytes(rows), {of.subject(), "kept"}, device);
  const LinearSaved saved{.memory = memory.region(), .plan = of.plan.identity, .tokens = rows, .kept = true};
  const TorchTensor& ends = all.tensor<"ends">();
  const bool adds = main_grad.given();
  TorchResult made(!adds, ExpertsPlan::weight_sizes(layer), *layer.rows.dtypes.weight, device);
  ExpertsMlpWeightGradientTensors tensors{
      .saved = &saved,
      .ends = {.data = int32_of(ends, {of.subject(), "ends"}, device), .experts = ends.elements(), .device = device},
      .wants = gradients_of(wants)};
  (is_up ? tensors.kept_up : tensors.kept_down) = kept.region();
  (is_up ? tensors.grad_up : tensors.grad_down) = adds ? main_grad_of(layer.rows, main_grad, device) : made.view;
  (is_up ? tensors.accumulate_up : tensors.accumulate_down) = adds;
  experts_mlp_weight_gradients(of.plan, run.backend(), tensors, run.run());
  all.result<"grad_weight">() = std::move(made.tensor);
}

constexpr std::array kExpertsMlpOperators{kTorchOperator<kExpertsMlpForward, forward>,
                                          kTorchOperator<kExpertsMlpBackward, backward>,
                                          kTorchOperator<kExpertsMlpInputBackward, input_backward>,
                                          kTorchOperator<kExpertsMlpWeightBackward, weight_backward>};

// sizes: experts, features, hidden. Returns (number, saved, kept_input, kept_up, kept_down, left, does backward read
// weights?, is it gated?). saved and what is kept are pairs of bytes: a constant, and as many for every 128 rows. left:
// bytes.
nb::tuple add_experts_plan(const std::string& recipe_name, const std::array<std::int64_t, 3>& sizes,
                           const std::string& input, const std::string& weight, bool grad_up_weight,
                           bool grad_down_weight, bool weight_again, bool fast_gradients, const std::string& activation,
                           bool fast_math, bool all_have_experts, bool up_bias) {
  const auto [experts, features, hidden] = sizes;
  const LinearConfig config = config_of_experts(recipe_name, weight_again, fast_gradients);
  ExpertsPlan plan(experts_mlp_plan({.name = placeholder(0),
                                     .config = config,
                                     .experts = experts,
                                     .shape = {.features = features, .hidden = hidden},
                                     .up_bias = up_bias,
                                     .dtypes = linear_dtypes(input, weight, std::nullopt),
                                     .activation = activation,
                                     .fast_math = fast_math,
                                     .grad_up_weight = grad_up_weight,
                                     .grad_down_weight = grad_down_weight}),
                   all_have_experts);
  const auto bytes_of = [](const TorchSavedSize& size) { return nb::make_tuple(size.constant, size.per_unit); };
  const nb::tuple saved = bytes_of(plan.saved), kept_input = bytes_of(plan.kept_input);
  const nb::tuple kept_up = bytes_of(plan.kept[0]), kept_down = bytes_of(plan.kept[1]);
  const std::size_t left = plan.left.bytes;
  const bool reads_weight = plan.plan.down.weight_again.any;
  const bool gated = plan.plan.gated;
  const std::uint64_t identity = plan.plan.identity + (all_have_experts ? 0 : 1);
  const std::int64_t number = plans_of<ExpertsPlan>().add(identity, std::move(plan), {sizes_text(hidden, features)});
  return nb::make_tuple(number, saved, kept_input, kept_up, kept_down, left, reads_weight, gated);
}

const TorchFamily kExpertsMlpFamily(kExpertsMlpOperators, [](nb::module_& module) {
  module.def("torch_experts_plan", &add_experts_plan, "recipe"_a, "sizes"_a, "input"_a, "weight"_a, "grad_up_weight"_a,
             "grad_down_weight"_a, "weight_again"_a, "fast_gradients"_a, "activation"_a, "fast_math"_a,
             "all_have_experts"_a, "up_bias"_a);
  bind_names(module, "experts", plans_of<ExpertsPlan>());
  module.def("torch_clamped_swiglu", &clamped_swiglu, "alpha"_a, "limit"_a);
});

}  // namespace
}  // namespace ingot::python
