// LayerNorm and RMSNorm, forward with the cast of what they give, and backward. Every mean, sum and product is in f32,
// in an order that templates/norm/norm.cuh fixes.
#pragma once

#include <cstdint>
#include <optional>

#include "ingot/codegen/types/dtype.h"
#include "ingot/codegen/types/granularity.h"
#include "ingot/codegen/types/scale_source.h"

namespace ingot {

enum class NormKind : std::uint8_t { layer, rms };

// Of each row of x[rows, cols]:
//   layer: mean = sum(x) / cols, rstd = rsqrt(sum((x - mean)^2) / cols + eps), value = (x - mean) * rstd
//   rms:                         rstd = rsqrt(sum(x^2) / cols + eps),          value = x * rstd
//   affine: value = value * gamma[col] (layer: + beta[col]), both of dtype `in`
// rounded to `in`. These are the operations of a cast's expression (x - mean[row]) * rstd[row] * gamma[col] +
// beta[col], in their order: from the statistics, such a cast makes the same values with scales of any granularity.
//
// result: the values. out: their FP8 codes, with a scale for each row (dynamic) or one that is given. stats: mean
// (layer) and rstd, for the backward pass. eps is an argument of the call.
struct NormSpec {
  NormKind kind = NormKind::layer;
  Dtype in = Dtype::bf16;
  std::optional<Dtype> out{};
  bool affine = false;
  ScaleGranularity scale = kRowwise;  // of the codes: kRowwise if dynamic, kTensorwise if given
  ScaleSource source = ScaleSource::dynamic;
  bool pow2 = false;
  bool result = false;
  bool stats = false;
  bool operator==(const NormSpec&) const = default;
};

// From grad_output, x and the statistics that the forward pass saved; xhat = (x - mean) * rstd (rms: x * rstd) and
// g = grad_output * gamma:
//   grad_input = ((g - mean(g)) - xhat * mean(g * xhat)) * rstd, rms: (g - xhat * mean(g * xhat)) * rstd
//   affine: grad_gamma[col] = sum over rows of grad_output * xhat; layer: grad_beta[col] = that of grad_output
struct NormBackwardSpec {
  NormKind kind = NormKind::layer;
  Dtype in = Dtype::bf16;
  bool affine = false;
  Dtype sums = Dtype::f32;  // of grad_gamma and grad_beta: f32 or `in`
  bool operator==(const NormBackwardSpec&) const = default;
};

}  // namespace ingot
