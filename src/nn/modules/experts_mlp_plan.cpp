// The plan of a mixture of experts' MLPs, and where the parts of its memory are.
#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "ingot/codegen/types/spec_hash.h"
#include "ingot/nn/linear/memory_places.h"
#include "ingot/nn/linear/tensor_checks.h"
#include "ingot/nn/modules/experts_mlp.h"

namespace ingot {
namespace {

constexpr const char* kRouterWeight = "router_weight";

GroupedLinearPlanOptions layer_options(const ExpertsMlpPlanOptions& options, const std::string& subject,
                                       const char* layer, const LinearShape& shape, bool grad_weight) {
  return {.name = fmt::format("{}.{}", options.name, layer),
          .config = options.config,
          .experts = options.experts,
          .shape = shape,
          .dtypes = {.input = options.dtypes.input, .weight = options.dtypes.weight},
          .grad_weight = grad_weight,
          .fusion = {.fast_math = options.fast_math},
          .subject = subject};
}

// The transposed codes of a gradient of a layer's output.
ExpertsMlpCodes place_kept(MemoryPlaces& places, const GroupedLinearPlan& layer, std::int64_t rows,
                           const LinearGradients& wants) {
  ExpertsMlpCodes kept;
  const CastSpec& spec = layer.rows.grad_output_of(wants).cast.spec;
  const std::int64_t out = layer.rows.shape.out_features;
  if (layer.in_slots()) {
    places.slots(kept.codes, kept.scale_inv, spec.out, out, layer.placed_columns(rows));
    return kept;
  }
  const std::int64_t placed = GroupedLinearPlan::placed_tokens(rows);
  places.codes(kept.codes, spec.out, out, placed);
  places.floats(kept.scale_inv, layer.scale_inv_count(spec.transposed_scale.value_or(spec.scale), placed, out));
  return kept;
}

// Its codes for grad_input.
ExpertsMlpCodes place_codes(MemoryPlaces& places, const GroupedLinearPlan& layer, std::int64_t rows,
                            const LinearGradients& wants) {
  ExpertsMlpCodes made;
  const LinearCast& cast = layer.rows.grad_output_of(wants).cast;
  const std::int64_t out = layer.rows.shape.out_features;
  places.codes(made.codes, cast.spec.out, rows, out);
  if (cast.has_own_scale_inv()) places.floats(made.scale_inv, layer.scale_inv_count(cast.spec.scale, rows, out));
  return made;
}

}  // namespace

std::string clamped_swiglu(double alpha, double limit) {
  return fmt::format("min(x, {1:.9g}) * sigmoid({0:.9g} * min(x, {1:.9g})) * (max(min(up, {1:.9g}), -{1:.9g}) + 1)",
                     alpha, limit);
}

ExpertsMlpPlan experts_mlp_plan(const ExpertsMlpPlanOptions& options) {
  ExpertsMlpPlan plan{
      .subject = options.subject.empty() ? fmt::format("experts \"{}\"", options.name) : options.subject,
      .shape = options.shape,
      .fast_math = options.fast_math};
  if (options.shape.bias) {
    refuse_argument(
        fmt::format("{} bias", plan.subject).c_str(),
        "is set, but experts' MLPs have up_bias alone: add the second layer's, times the router's weights, to "
        "the output");
  }
  if (options.dtypes.output) {
    refuse_argument(fmt::format("{} dtypes", plan.subject).c_str(),
                    "have an output, but experts' outputs have the input's dtype: leave it out");
  }
  // An MLP of one expert knows what activations there are. Its GEMMs, in high precision, take no weight in another
  // dtype.
  const MlpPlan one = mlp_plan({.shape = {.features = options.shape.features, .hidden = options.shape.hidden},
                                .dtypes = {.input = options.dtypes.input},
                                .activation = options.activation,
                                .subject = plan.subject});
  plan.gated = one.gated;
  const Pointwise activation =
      parse_pointwise(fmt::format("({}) * {}[row]", print(one.down.fusion.prologue), kRouterWeight));
  plan.by_x = backward(activation, "x");
  if (plan.gated) plan.by_up = backward(activation, "up");
  plan.by_router = backward(activation, kRouterWeight);
  const auto [features, hidden, bias] = plan.shape;
  plan.up = grouped_linear_plan(
      layer_options(options, plan.subject, plan.gated ? "gate_up" : "up",
                    {.in_features = features, .out_features = plan.hidden_columns(), .bias = options.up_bias},
                    options.grad_up_weight));
  GroupedLinearPlanOptions down = layer_options(
      options, plan.subject, "down", {.in_features = hidden, .out_features = features}, options.grad_down_weight);
  down.fusion.prologue = activation;
  plan.down = grouped_linear_plan(down);
  plan.identity = mix(mix(plan.up.identity + 3) + plan.down.identity);
  return plan;
}

bool ExpertsMlpPlan::finds_maxima(const ExpertsMlpGradients& wants) const {
  return takes_known_maxima(up, wants.of_up());
}

ElementwiseSpec ExpertsMlpPlan::activation_gradients(const ExpertsMlpGradients& wants) const {
  return {.in = up.rows.dtypes.input,
          .pointwise = by_x,
          .second = by_up,
          .row_sum = wants.router ? by_router : Pointwise{},
          .maxima = finds_maxima(wants),
          .fast_math = fast_math};
}

ExpertsMlpSavedMemory ExpertsMlpPlan::saved_memory(std::int64_t rows) const {
  ExpertsMlpSavedMemory memory{.up_bytes = up.saved_memory(rows).bytes, .down_bytes = down.saved_memory(rows).bytes};
  MemoryPlaces places;
  memory.up_begin = places.region(memory.up_bytes);
  memory.down_begin = places.region(memory.down_bytes);
  memory.bytes = places.bytes();
  return memory;
}

ExpertsMlpForwardScratch ExpertsMlpPlan::forward_scratch(std::int64_t rows, LinearPass pass, bool observed) const {
  ExpertsMlpForwardScratch scratch{
      .layer_bytes = std::max(up.forward_scratch(rows, pass, observed), down.forward_scratch(rows, pass, observed))};
  MemoryPlaces places;
  const Dtype dtype = up.rows.dtypes.input;
  if (pass == LinearPass::inference) places.values(scratch.hidden, dtype, rows, hidden_columns());
  places.values(scratch.rows, dtype, rows, shape.features);
  scratch.layer_begin = places.region(scratch.layer_bytes);
  scratch.bytes = places.bytes();
  return scratch;
}

ExpertsMlpKeptMemory ExpertsMlpPlan::kept_memory(std::int64_t rows, const ExpertsMlpGradients& wants) const {
  ExpertsMlpKeptMemory memory;
  MemoryPlaces of_input, of_up, of_down;
  if (wants.input) memory.input = place_codes(of_input, up, rows, wants.of_up());
  // Tensorwise, they share a scale_inv with the transposed codes. It has room here too: callers know these bytes, but
  // not always what else is wanted.
  if (wants.input && !memory.input.scale_inv.used) {
    TensorPlace of_tensors;
    of_input.floats(of_tensors, up.is_delayed() ? up.experts : 1);
  }
  if (wants.up_weight) memory.up = place_kept(of_up, up, rows, wants.of_up());
  if (wants.down_weight) memory.down = place_kept(of_down, down, rows, wants.of_down());
  memory.input_bytes = of_input.bytes();
  memory.up_bytes = of_up.bytes();
  memory.down_bytes = of_down.bytes();
  return memory;
}

ExpertsMlpBackwardScratch ExpertsMlpPlan::backward_scratch(std::int64_t rows, const ExpertsMlpGradients& wants) const {
  ExpertsMlpBackwardScratch scratch;
  if (!wants.reaches_hidden()) return scratch;
  const Dtype dtype = up.rows.dtypes.input;
  MemoryPlaces places;
  // The second layer's weights are read before grad_hidden is written: they share its memory.
  scratch.weight_bytes = down.weight_again_memory().bytes;
  scratch.weight_begin = places.bytes();
  places.values(scratch.grad_hidden, dtype, rows, hidden_columns());
  const std::size_t shared = places.bytes() - scratch.weight_begin;
  if (scratch.weight_bytes > shared) places.region(scratch.weight_bytes - shared);
  if (finds_maxima(wants)) {
    places.floats(scratch.row_amax, rows);
    places.floats(scratch.column_amax, hidden_columns());
  }
  const ExpertsMlpKeptMemory kept = kept_memory(rows, wants);
  // Places it in a region that is written later, or here. Returns whether that has room.
  const auto place_in = [&](std::size_t room, const auto& place) {
    MemoryPlaces there;
    place(there);
    if (there.bytes() <= room) return true;
    place(places);
    return false;
  };
  scratch.down_is_in_kept_input = place_in(
      kept.input_bytes, [&](MemoryPlaces& in) { scratch.down = place_codes(in, down, rows, wants.of_down()); });
  scratch.grad_activation_is_in_kept_up =
      place_in(kept.up_bytes, [&](MemoryPlaces& in) { in.values(scratch.grad_activation, dtype, rows, shape.hidden); });
  scratch.bytes = places.bytes();
  return scratch;
}

ExpertsMlpInputGradientScratch ExpertsMlpPlan::input_gradient_scratch(std::int64_t rows) const {
  ExpertsMlpInputGradientScratch scratch{.weight_bytes = up.weight_again_memory().bytes};
  MemoryPlaces places;
  places.values(scratch.grad_rows, up.rows.dtypes.input, rows, shape.features);
  scratch.weight_begin = places.region(scratch.weight_bytes);
  scratch.bytes = places.bytes();
  return scratch;
}

}  // namespace ingot
