#include "ingot/nn/modules/norm_linear_plan.h"

#include <fmt/format.h>

#include <bit>

#include "ingot/codegen/types/spec_hash.h"
#include "ingot/nn/linear/memory_places.h"
#include "ingot/nn/linear/tensor_checks.h"

namespace ingot {
namespace {

// In the same order of operations as the norm kernels (norm_spec.h), so that the values have the same bits.
Pointwise norm_expression(const NormOptions& norm) {
  if (norm.zero_centred) {
    return parse_pointwise(norm.kind == NormKind::rms ? "x * rstd[row] * (gamma[col] + 1)"
                                                      : "(x - mean[row]) * rstd[row] * (gamma[col] + 1) + beta[col]");
  }
  if (norm.kind == NormKind::rms) return parse_pointwise(norm.affine ? "x * rstd[row] * gamma[col]" : "x * rstd[row]");
  return parse_pointwise(norm.affine ? "(x - mean[row]) * rstd[row] * gamma[col] + beta[col]"
                                     : "(x - mean[row]) * rstd[row]");
}

bool casts_input(const LinearConfig& config) { return config.output.a || config.grad_weight.b; }

void place_statistics(const NormLinearPlan& plan, std::int64_t tokens, MemoryPlaces& places, TensorPlace& mean,
                      TensorPlace& rstd) {
  if (plan.has_mean()) places.floats(mean, tokens);
  if (plan.norm) places.floats(rstd, tokens);
}

std::uint64_t identity_of(const NormLinearPlan& plan) {
  if (!plan.norm) return plan.linear.identity;
  const auto& [kind, affine, eps, zero_centred] = *plan.norm;
  return mix(plan.linear.identity + mix(pack(kind, affine, zero_centred, 1) << 32 | std::bit_cast<std::uint32_t>(eps)));
}

}  // namespace

std::size_t NormLinearSavedMemory::bytes_of_parts() const {
  return mean.bytes() + rstd.bytes() + values.bytes() + layer.bytes_of_parts();
}

NormLinearPlan norm_linear_plan(const NormLinearPlanOptions& options) {
  NormLinearPlan plan{.subject = options.subject, .norm = options.norm};
  if (plan.subject.empty()) plan.subject = fmt::format("norm linear \"{}\"", options.linear.name);
  LinearPlanOptions linear = options.linear;
  if (plan.norm) {
    if (linear.fusion.prologue) {
      refuse_argument(fmt::format("{} fusion", plan.subject).c_str(),
                      "has a prologue, but the norm is the prologue of this layer: leave it empty");
    }
    if (plan.norm->zero_centred && !plan.norm->affine) {
      refuse_argument(fmt::format("{} zero_centred", plan.subject).c_str(),
                      "is set, but the norm is made without gamma: set affine too");
    }
    // The norm's own values have a plain gamma; another is an expression of the layer, in high precision too.
    plan.writes_values = !casts_input(linear.config) && !plan.norm->zero_centred;
    if (!plan.writes_values) linear.fusion.prologue = norm_expression(*plan.norm);
  }
  plan.linear = linear_plan(linear);
  plan.add_grad_values = {ElementwiseSpec{.in = plan.linear.dtypes.input, .pointwise = parse_pointwise("x + a")},
                          ElementwiseSpec{.in = plan.linear.dtypes.input, .pointwise = parse_pointwise("x + a + b")}};
  plan.identity = identity_of(plan);
  return plan;
}

NormLinearSavedMemory NormLinearPlan::saved_memory(std::int64_t tokens) const {
  NormLinearSavedMemory memory{.layer = linear.saved_memory(tokens)};
  MemoryPlaces places;
  place_statistics(*this, tokens, places, memory.mean, memory.rstd);
  if (keeps_values()) places.values(memory.values, linear.dtypes.input, tokens, linear.shape.in_features);
  memory.layer_begin = places.region(memory.layer.bytes);
  memory.bytes = places.bytes();
  return memory;
}

NormLinearForwardScratch NormLinearPlan::forward_scratch(std::int64_t tokens, LinearPass pass, bool observed) const {
  if (pass == LinearPass::recompute && linear.recomputes_output()) pass = LinearPass::training;
  NormLinearForwardScratch scratch{.layer_bytes = linear.forward_scratch(tokens, pass, observed).bytes};
  MemoryPlaces places;
  const bool keeps = pass != LinearPass::inference;
  if (!keeps && !writes_values) place_statistics(*this, tokens, places, scratch.mean, scratch.rstd);
  if (writes_values && !(keeps && keeps_values())) {
    places.values(scratch.values, linear.dtypes.input, tokens, linear.shape.in_features);
  }
  scratch.layer_begin = places.region(scratch.layer_bytes);
  scratch.bytes = places.bytes();
  return scratch;
}

NormLinearBackwardScratch NormLinearPlan::backward_scratch(std::int64_t tokens, const LinearGradients& wants,
                                                           bool observed) const {
  NormLinearBackwardScratch scratch{.layer_bytes = linear.backward_scratch(tokens, wants, observed).bytes};
  MemoryPlaces places;
  if (norm && wants.input) {
    places.values(scratch.grad_values, linear.dtypes.input, tokens, linear.shape.in_features);
  }
  scratch.layer_begin = places.region(scratch.layer_bytes);
  scratch.bytes = places.bytes();
  return scratch;
}

NormLinearMemory NormLinearPlan::memory(std::int64_t tokens) const {
  return {.weight = linear.weight_memory(),
          .saved = saved_memory(tokens),
          .forward = forward_scratch(tokens),
          .backward = backward_scratch(tokens, {.bias = linear.shape.bias})};
}

}  // namespace ingot
