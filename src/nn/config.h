// How each of a linear layer's three GEMMs is computed. Plain values: a recipe (recipes.h) is a function that returns
// one.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>

#include "ingot/codegen/kernel_spec.h"
#include "ingot/codegen/types/dtype.h"
#include "ingot/codegen/types/granularity.h"

namespace ingot {

// Where a cast's scale comes from. dynamic: the maxima of what is cast. delayed: the maxima of earlier steps
// (delayed_scaling.h). fixed: Cast::scale, always (torchao's "static").
enum class Scaling : std::uint8_t { dynamic, delayed, fixed };

// The cast of one operand of a GEMM. The granularity is in terms of the operand as the GEMM reads it, in rows along the
// dimension that it sums over: kRowwise is one scale for each row of output, or for each column, whichever of the
// tensor's dimensions that is (torchao's axiswise). kRowGroups: for each 128 of a row; kBlocks, of b only: for each
// 128 x 128. Delayed and fixed scales are of whole tensors.
struct Cast {
  Dtype dtype = Dtype::e4m3fn;
  ScaleGranularity granularity = kTensorwise;
  bool pow2 = false;
  Scaling scaling = Scaling::dynamic;
  float scale = 0;  // of a fixed cast: codes = encode(saturate(x * scale)); 0 otherwise
  bool operator==(const Cast&) const = default;
};

// Both operands are cast, or neither (nullopt).
struct GemmConfig {
  std::optional<Cast> a{};
  std::optional<Cast> b{};
  bool fast_accumulation = false;
  bool operator==(const GemmConfig&) const = default;
};

// How backward comes by the codes of a tensor along its other dimension: those of the input for grad_weight, and of the
// weight for grad_input, where their scales are not those of forward's codes.
//   together  one call in forward casts the tensor along both dimensions, and backward's codes are kept
//   again     backward casts the high-precision tensor, of which a view is kept; it must not change in between
//   folded    forward's codes serve both GEMMs (transposed). Their row factors lie along what backward's GEMM sums
//   over,
//             so they are multiplied into grad_output ahead of its cast: with W = codes * factor[n],
//             grad_input = (grad_output * factor[n]) @ codes. Rowwise scales only; grad_output is cast for each GEMM
enum class OtherCodes : std::uint8_t { together, again, folded };

inline bool is_float8(const GemmConfig& gemm) { return gemm.a && gemm.b; }

//   output[M, N]      = input[M, K]         @ weight[N, K]^T      a = input,       b = weight
//   grad_input[M, K]  = grad_output[M, N]   @ weight[N, K]        a = grad_output, b = weight
//   grad_weight[N, K] = grad_output[M, N]^T @ input[M, K]         a = grad_output, b = input
//
// Each GEMM is FP8 or high precision on its own: grad_weight = {} keeps the most sensitive of the three in the type of
// the tensors.
struct LinearConfig {
  GemmConfig output{};
  GemmConfig grad_input{};
  GemmConfig grad_weight{};
  OtherCodes input = OtherCodes::together;
  OtherCodes weight = OtherCodes::together;
  bool operator==(const LinearConfig&) const = default;
};

// ---- what a config asks for ----------------------------------------------------------------------------------------

// The casts of one tensor: its codes as it lies, for one GEMM, and transposed, for another; nullopt where that GEMM is
// in high precision.
struct TensorCasts {
  std::optional<Cast> codes{};
  std::optional<Cast> transposed{};
};

// Of a valid config. In forward: the input's for output and grad_weight, the weight's for output and grad_input, but
// for those that backward makes (OtherCodes::again).
TensorCasts input_casts(const LinearConfig& config);
TensorCasts weight_casts(const LinearConfig& config);
// In backward: grad_output's for grad_input and grad_weight; and what forward left.
TensorCasts grad_output_casts(const LinearConfig& config);
TensorCasts input_casts_again(const LinearConfig& config);
TensorCasts weight_casts_again(const LinearConfig& config);

// Are both asked for, with the same scales? Their codes then have one set of factors.
bool share_scales(const TensorCasts& casts);

// The one call that makes both, of a tensor of dtype `in`. At least one is asked for. Delayed and fixed scales are
// given.
CastSpec cast_spec(const TensorCasts& casts, Dtype in);

// "i:dyn_ten_e4m3fn w:dyn_ten_e4m3fn go:dyn_ten_e5m2 fast:output", with " w_gi:..." (i_gw, go_gw) where a tensor's
// second cast is another than its first, with " hp:grad_weight" where only some GEMMs are FP8, with " again:input" and
// " folded:input,weight"; or "high precision". "del" stands for delayed scales, "sta16" for a fixed one of 16.
std::string print(const LinearConfig& config);

// Throws Error{invalid_spec} that names the rule broken: FP8 dtypes; both operands or neither; the two casts of input,
// of weight and of grad_output are to one format, with pow2 both or neither, and equal where their scales are not
// dynamic; granularities that a GEMM can take (tensor or row for each; groups for both); delayed and fixed scales for
// whole tensors; a fixed one is positive and finite; fast accumulation for FP8 GEMMs without groups only; what
// OtherCodes asks for.
void validate(const LinearConfig& config);

}  // namespace ingot
