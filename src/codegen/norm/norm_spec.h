// LayerNorm and RMSNorm: the forward pass, with the cast of its result, and the backward pass. Every mean, sum and
// product is in f32, in an order that templates/norm/norm.cuh fixes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ingot/api.h"
#include "ingot/codegen/types/dtype.h"
#include "ingot/codegen/types/granularity.h"
#include "ingot/codegen/types/pass.h"

namespace ingot {

class SpecReader;
struct TemplateInstance;

enum class NormKind : std::uint8_t { layer, rms };

// For each row of x[rows, cols]:
//   layer: mean = sum(x) / cols, rstd = rsqrt(sum((x - mean)^2) / cols + eps), value = (x - mean) * rstd
//   rms:                         rstd = rsqrt(sum(x^2) / cols + eps),          value = x * rstd
//   affine: value = value * gamma[col] (layer: + beta[col], as a fused multiply-add), both of dtype `in`
// rounded to `in`. These are the operations of a cast's expression (x - mean[row]) * rstd[row] * gamma[col] +
// beta[col], in their order: given the statistics, such a cast computes the same values with scales of any granularity.
struct NormSpec {
  static constexpr std::string_view kWord = "norm";
  NormKind kind = NormKind::layer;
  Dtype in = Dtype::bf16;
  std::optional<Dtype> out{};  // writes the values' FP8 codes, in this dtype
  bool affine = false;
  ScaleGranularity scale = kRowwise;  // of the codes: kRowwise if dynamic, kTensorwise if given
  ScaleSource source = ScaleSource::dynamic;
  bool pow2 = false;
  bool result = false;  // writes the values, in `in`
  bool stats = false;   // writes mean (layer) and rstd, for the backward pass
  // 0: the tensors decide which kernel runs; leave it so. Otherwise (codes alone of 16-bit `in`) it names that of rows
  // of cols - 4095 to cols columns, 12288 or 16384, or of just 1024, 2048, 4096 or 8192 (affine with dynamic scales).
  std::int32_t cols = 0;
  bool operator==(const NormSpec&) const = default;
};

// From grad_output, x and the statistics that the forward pass saved; with xhat = (x - mean) * rstd (rms: x * rstd) and
// g = grad_output * gamma:
//   grad_input = ((g - mean(g)) - xhat * mean(g * xhat)) * rstd, rms: (g - xhat * mean(g * xhat)) * rstd
//   affine: grad_gamma[col] = sum over rows of grad_output * xhat; layer: grad_beta[col] = sum of grad_output
// zero_centred: gamma is given as its difference from 1, so g = grad_output * (gamma + 1) with the sum in f32. Forward
// is then such an expression of a cast or of an elementwise operation, from plain statistics.
struct NormBackwardSpec {
  static constexpr std::string_view kWord = "norm_backward";
  NormKind kind = NormKind::layer;
  Dtype in = Dtype::bf16;
  bool affine = false;
  Dtype sums = Dtype::f32;  // of grad_gamma and grad_beta: f32 or `in`
  bool zero_centred = false;
  bool operator==(const NormBackwardSpec&) const = default;
};

// The functions that kernel_spec.h and generate.h call for every spec.
std::string print_spec(const NormSpec& spec);
void validate_spec(const NormSpec& spec);
INGOT_API std::uint64_t hash_spec(const NormSpec& spec);
void read_spec(const SpecReader& reader, NormSpec& spec);
INGOT_API void list_valid(std::vector<NormSpec>& specs);
ExtraPasses extra_passes(const NormSpec& spec);
TemplateInstance template_instance(const NormSpec& spec, Pass pass);

std::string print_spec(const NormBackwardSpec& spec);
void validate_spec(const NormBackwardSpec& spec);
INGOT_API std::uint64_t hash_spec(const NormBackwardSpec& spec);
void read_spec(const SpecReader& reader, NormBackwardSpec& spec);
INGOT_API void list_valid(std::vector<NormBackwardSpec>& specs);
ExtraPasses extra_passes(const NormBackwardSpec& spec);
TemplateInstance template_instance(const NormBackwardSpec& spec, Pass pass);

}  // namespace ingot
