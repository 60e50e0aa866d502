#include "ingot/nn/recipe/linear_gemms.h"

#include <array>

namespace ingot {
namespace {

// FP8 operands are always k_major; the given layouts are for high-precision operands.
GemmSpec spec_of(const GemmConfig& config, Layout layout_a, Layout layout_b, Dtype dtype) {
  if (!config.a) return {.a = dtype, .b = dtype, .out = dtype, .layout_a = layout_a, .layout_b = layout_b};
  return {.a = config.a->dtype,
          .b = config.b->dtype,
          .out = dtype,
          .scale_a = config.a->granularity,
          .scale_b = config.b->granularity,
          .fast_accumulation = config.fast_accumulation};
}

// Folded scale_inv are already in grad_output's codes, so the GEMM gets a single factor of 1 instead.
GemmSpec folded(GemmSpec spec, OtherCodes other) {
  if (other == OtherCodes::folded) spec.scale_b = kTensorwise;
  return spec;
}

}  // namespace

GemmSpec output_gemm(const LinearConfig& config, Dtype dtype) {
  return spec_of(config.output, Layout::k_major, Layout::k_major, dtype);
}

GemmSpec grad_input_gemm(const LinearConfig& config, Dtype dtype) {
  return folded(spec_of(config.grad_input, Layout::k_major, Layout::mn_major, dtype), config.weight);
}

GemmSpec grad_weight_gemm(const LinearConfig& config, Dtype dtype) {
  return folded(spec_of(config.grad_weight, Layout::mn_major, Layout::mn_major, dtype), config.input);
}

std::array<LinearGemm, 3> linear_gemms(const LinearConfig& config, const LinearSize& size, Dtype dtype) {
  validate(config);
  const auto& [tokens, in, out] = size;
  return {LinearGemm{"output", {output_gemm(config, dtype), {tokens, out, in}}},
          LinearGemm{"grad_input", {grad_input_gemm(config, dtype), {tokens, in, out}}},
          LinearGemm{"grad_weight", {grad_weight_gemm(config, dtype), {out, in, tokens}}}};
}

}  // namespace ingot
