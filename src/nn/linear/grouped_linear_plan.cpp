// The plan of a grouped linear layer, and how much memory its calls need.
#include "ingot/nn/linear/grouped_linear_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>

#include "ingot/codegen/types/spec_hash.h"
#include "ingot/nn/linear/memory_places.h"
#include "ingot/nn/linear/tensor_checks.h"

#include "expert_slots.cuh"

namespace ingot {
namespace {

// Why no groups take the config, or empty.
std::string fault_of(const LinearConfig& config) {
  const auto fault = [&](const char* why) { return fmt::format("is \"{}\", but {}", print(config), why); };
  int groups = 0;
  const Scaling scaling = is_float8(config.output) ? config.output.a->scaling : Scaling::dynamic;
  for (const GemmConfig* gemm : {&config.output, &config.grad_input, &config.grad_weight}) {
    if (!is_float8(*gemm)) return fault("all three GEMMs of experts must be in FP8");
    for (const Cast& cast : {*gemm->a, *gemm->b}) {
      if (cast.granularity == kRowGroups || cast.granularity == kBlocks) ++groups;
      const bool whole = cast.granularity == kTensorwise || cast.granularity == kRowwise;
      const bool same = cast.scaling == scaling && scaling != Scaling::fixed;
      if ((whole || groups != 0) && same) continue;
      return fault(
          "the scales of experts are all dynamic, or all delayed: take tensorwise, delayed, rowwise or blockwise");
    }
  }
  if (groups != 0 && (groups != 6 || config.grad_weight.b->granularity != kRowGroups)) {
    return fault("where scales of experts are of groups of 128, all are, and grad_weight's are 1x128: take blockwise");
  }
  if (config.input == OtherCodes::together && config.weight != OtherCodes::folded) return {};
  return fault("experts' inputs are cast together, and no scale_inv are folded");
}

void check_options(const std::string& subject, const GroupedLinearPlanOptions& options) {
  const auto refuse = [&](const char* what, const std::string& why) {
    refuse_argument(fmt::format("{} {}", subject, what).c_str(), why);
  };
  if (options.experts < 1 || options.experts > kMostExperts) {
    refuse("experts", fmt::format("is {}, but must be 1 to {}", options.experts, kMostExperts));
  }
  if (options.fusion.epilogue) refuse("epilogue", "is set, but grouped GEMMs have none: apply it to the output");
  if (const std::string fault = fault_of(options.config); !fault.empty()) refuse("config", fault);
}

LinearCast weight_cast(const TensorCasts& casts, Dtype in) {
  if (!casts.codes && !casts.transposed) return {};
  const Cast& one = casts.codes ? *casts.codes : *casts.transposed;
  LinearCast cast{.any = true, .scaling = one.scaling, .spec = cast_spec(casts, in)};
  cast.spec.stacked = true;
  return cast;
}

std::uint64_t identity_of(const GroupedLinearPlan& plan) {
  std::uint64_t hash =
      mix(plan.rows.identity + static_cast<std::uint64_t>(plan.experts) + (plan.bias ? 1ULL << 40 : 0));
  for (const LinearCast* cast : {&plan.weight, &plan.weight_again}) {
    hash = mix(hash + (cast->any ? hash_value(cast->spec) : 0));
  }
  return hash;
}

}  // namespace

bool experts_take(const LinearConfig& config) { return fault_of(config).empty(); }

GroupedLinearPlan grouped_linear_plan(const GroupedLinearPlanOptions& options) {
  const std::string subject =
      options.subject.empty() ? fmt::format("grouped linear \"{}\"", options.name) : options.subject;
  validate(options.config);
  check_options(subject, options);
  LinearConfig of_rows = options.config;
  of_rows.weight = OtherCodes::together;  // so that the plan of the rows has no room for a weight
  LinearShape shape = options.shape;
  shape.bias = false;  // each expert's bias and its gradient are not those of all rows
  GroupedLinearPlan plan{.rows = linear_plan({.name = options.name,
                                              .config = of_rows,
                                              .shape = shape,
                                              .dtypes = options.dtypes,
                                              .fusion = options.fusion,
                                              .grad_weight = options.grad_weight,
                                              .subject = subject}),
                         .experts = options.experts};
  plan.weight = weight_cast(weight_casts(options.config), *plan.rows.dtypes.weight);
  plan.weight_again = weight_cast(weight_casts_again(options.config), *plan.rows.dtypes.weight);
  plan.bias = options.shape.bias;
  plan.output_gemm = {.gemm = plan.rows.output_gemm[0]};
  plan.output_gemm.gemm.bias = plan.bias;
  plan.grad_input_gemm = {.gemm = plan.rows.grad_input_gemm};
  plan.grad_weight_gemm = {.gemm = plan.rows.grad_weight_gemm, .along_k = true};
  const auto by_expert = [&](LinearCast& cast) {
    cast.spec.experts = cast.any && (plan.is_delayed() || (plan.in_slots() && cast.spec.transposed));
  };
  for (LinearCast& cast : plan.rows.input) by_expert(cast);
  for (LinearGradOutputCast& order : plan.rows.grad_output) by_expert(order.cast);
  plan.identity = identity_of(plan);
  return plan;
}

std::int64_t GroupedLinearPlan::placed_columns(std::int64_t tokens) const {
  if (!in_slots() || tokens < 0) return placed_tokens(tokens);
  return ExpertSlots::kRows * expert_slots(tokens, experts);
}

std::optional<ScaleGranularity> GroupedLinearPlan::weight_amax_granularity() const {
  const CastSpec& first = weight.spec;
  const CastSpec& again = weight_again.spec;
  if (!weight.any || !weight_again.any || first.transposed || again.codes || is_delayed()) return {};
  if (first.scale == kTensorwise && again.scale == kTensorwise) return kTensorwise;
  if (first.scale == kRowwise && again.scale == kColumnwise) return kColumnwise;
  return {};
}

ScaleGranularity GroupedLinearPlan::weight_scale_of_grad_input() const {
  const CastSpec& cast = weight_again.any ? weight_again.spec : weight.spec;
  return cast.transposed_scale.value_or(cast.scale);
}

std::int64_t GroupedLinearPlan::weight_amax_count() const {
  const std::optional<ScaleGranularity> maxima = weight_amax_granularity();
  return maxima ? experts * scale_count(*maxima, rows.shape.out_features, rows.shape.in_features) : 0;
}

LinearWeightMemory GroupedLinearPlan::memory_of(const LinearCast& cast) const {
  if (!cast.any) return {};
  MemoryPlaces places;
  LinearWeightMemory memory =
      place_weights(places, cast.spec, rows.shape.out_features, rows.shape.in_features, experts);
  memory.bytes = std::max(places.bytes(), kLinearAlignment);
  return memory;
}

namespace {

// Gives the scale_inv, which are each expert's, a place at the end of all.
template <class Memory>
void place_of_experts(TensorPlace& scale_inv, std::int64_t experts, Memory& memory) {
  if (!scale_inv.used) return;
  MemoryPlaces places;
  places.region(memory.bytes);
  places.floats(scale_inv, experts);
  memory.bytes = places.bytes();
}

}  // namespace

LinearSavedMemory GroupedLinearPlan::saved_memory(std::int64_t tokens) const {
  LinearSavedMemory of_rows = rows.saved_memory(placed_tokens(tokens));
  if (is_delayed()) place_of_experts(of_rows.input_scale_inv, experts, of_rows);
  const LinearCast& cast = rows.input_of(LinearPass::training);
  if (!in_slots() || !cast.any || !cast.spec.transposed) return of_rows;
  LinearSavedMemory memory;
  MemoryPlaces places;
  places.slots(memory.input_transposed, memory.input_scale_inv, cast.spec.out, rows.shape.in_features,
               placed_columns(tokens));
  memory.bytes = places.bytes();
  return memory;
}

LinearForwardScratch GroupedLinearPlan::input_scratch(std::int64_t tokens, LinearPass pass, bool observed) const {
  LinearForwardScratch scratch = rows.forward_scratch(placed_tokens(tokens), pass, observed);
  if (is_delayed()) place_of_experts(scratch.input_scale_inv, experts, scratch);
  return scratch;
}

std::size_t GroupedLinearPlan::backward_scratch(std::int64_t tokens, const LinearGradients& wants) const {
  const std::size_t of_rows = grad_output_scratch(tokens, wants).bytes;
  return wants.input ? of_rows + weight_again_memory().bytes : of_rows;
}

LinearBackwardScratch GroupedLinearPlan::grad_output_scratch(std::int64_t tokens, const LinearGradients& wants) const {
  LinearBackwardScratch of_rows = rows.backward_scratch(placed_tokens(tokens), wants);
  if (is_delayed()) place_of_experts(of_rows.scale_inv, experts, of_rows);
  if (!in_slots()) return of_rows;
  LinearBackwardScratch scratch;
  MemoryPlaces places;
  const LinearCast& cast = rows.grad_output_of(wants).cast;
  const std::int64_t out = rows.shape.out_features;
  if (cast.any && cast.spec.codes) {
    places.codes(scratch.codes, cast.spec.out, tokens, out);
    places.floats(scratch.scale_inv, scale_count(kRowGroups, tokens, out));
  }
  if (cast.any && cast.spec.transposed) {
    places.slots(scratch.transposed, scratch.transposed_scale_inv, cast.spec.out, out, placed_columns(tokens));
  }
  scratch.bytes = places.bytes();
  return scratch;
}

}  // namespace ingot
