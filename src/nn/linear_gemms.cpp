#include "ingot/nn/linear_gemms.h"

namespace ingot {
namespace {

// FP8 operands always lie along K; the layouts are those of high-precision ones.
GemmSpec spec_of(const GemmConfig& config, Layout layout_a, Layout layout_b, Dtype dtype) {
  if (!config.a) return {.a = dtype, .b = dtype, .out = dtype, .layout_a = layout_a, .layout_b = layout_b};
  return {.a = config.a->dtype,
          .b = config.b->dtype,
          .out = dtype,
          .scale_a = config.a->granularity,
          .scale_b = config.b->granularity,
          .fast_accumulation = config.fast_accumulation};
}

}  // namespace

std::array<LinearGemm, 3> linear_gemms(const LinearConfig& config, const LinearSize& size, Dtype dtype) {
  validate(config);
  const auto& [tokens, in, out] = size;
  constexpr Layout kK = Layout::k_major;
  constexpr Layout kMn = Layout::mn_major;
  return {LinearGemm{"output", {spec_of(config.output, kK, kK, dtype), {tokens, out, in}}},
          LinearGemm{"grad_input", {spec_of(config.grad_input, kK, kMn, dtype), {tokens, in, out}}},
          LinearGemm{"grad_weight", {spec_of(config.grad_weight, kMn, kMn, dtype), {out, in, tokens}}}};
}

}  // namespace ingot
