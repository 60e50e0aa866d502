// LinearConfig says how a linear layer computes each of its three GEMMs: which operands are cast to FP8, with which
// scales, and which GEMMs stay in high precision. It is a plain value; a recipe (recipes.h) is a function that returns
// one.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>

#include "ingot/api.h"
#include "ingot/codegen/kernel_spec.h"
#include "ingot/codegen/types/dtype.h"
#include "ingot/codegen/types/granularity.h"

namespace ingot {

// Where a cast's scale comes from. dynamic: from the maxima of the data that is cast. delayed: from the maxima of
// earlier steps (delayed_scaling.h). fixed: always Cast::scale (torchao's "static").
enum class Scaling : std::uint8_t { dynamic, delayed, fixed };

// How one operand of a GEMM is cast. The granularity describes the operand as the GEMM reads it, with its rows along
// the dimension that the GEMM sums over. kRowwise is one scale for each row or each column of the output, whichever of
// the tensor's own dimensions that is (torchao's axiswise). kRowGroups is one scale for each 128 elements of a row;
// kBlocks is one for each 128 x 128 block, and only b can have it. A delayed or a fixed scale always covers a whole
// tensor.
struct Cast {
  Dtype dtype = Dtype::e4m3fn;
  ScaleGranularity granularity = kTensorwise;
  bool pow2 = false;
  Scaling scaling = Scaling::dynamic;
  float scale = 0;  // for Scaling::fixed: codes = encode(saturate(x * scale)); otherwise 0
  bool operator==(const Cast&) const = default;
};

// Either both operands are cast, or neither is (nullopt).
struct GemmConfig {
  std::optional<Cast> a{};
  std::optional<Cast> b{};
  bool fast_accumulation = false;
  bool operator==(const GemmConfig&) const = default;
};

// A tensor is cast along one dimension for forward's GEMM and along the other for backward's: the input for
// grad_weight, the weight for grad_input. This says how backward gets its codes where their scales differ from those of
// forward's codes.
//   together  one call in forward casts the tensor along both dimensions, and the layer keeps backward's codes
//   again     backward casts the high-precision tensor once more. The layer keeps a view of it, so the tensor must not
//             change in between
//   folded    forward's codes, transposed, serve both GEMMs. Their row scale_inv are along the dimension that
//   backward's
//             GEMM sums over, so the layer multiplies grad_output by them before it casts grad_output:
//             with W = codes * factor[n], grad_input = (grad_output * factor[n]) @ codes. Only for rowwise scales;
//             grad_output is then cast for each GEMM separately
enum class OtherCodes : std::uint8_t { together, again, folded };

inline bool is_float8(const GemmConfig& gemm) { return gemm.a && gemm.b; }

//   output[M, N]      = input[M, K]         @ weight[N, K]^T      a = input,       b = weight
//   grad_input[M, K]  = grad_output[M, N]   @ weight[N, K]        a = grad_output, b = weight
//   grad_weight[N, K] = grad_output[M, N]^T @ input[M, K]         a = grad_output, b = input
//
// Each GEMM is in FP8 or in high precision independently of the others: grad_weight = {} keeps the most sensitive of
// the three in the dtype of the tensors.
struct LinearConfig {
  GemmConfig output{};
  GemmConfig grad_input{};
  GemmConfig grad_weight{};
  OtherCodes input = OtherCodes::together;
  OtherCodes weight = OtherCodes::together;
  bool operator==(const LinearConfig&) const = default;
};

// ---- what a config requires -----------------------------------------------------------------------------------------

// The casts of one tensor: `codes` in its own layout for one GEMM, and `transposed` for another. nullopt where that
// GEMM runs in high precision.
struct TensorCasts {
  std::optional<Cast> codes{};
  std::optional<Cast> transposed{};
};

// The casts of forward, for a valid config: the input's for the output and grad_weight GEMMs, and the weight's for the
// output and grad_input GEMMs. Casts that backward makes (OtherCodes::again) are left out.
INGOT_API TensorCasts input_casts(const LinearConfig& config);
INGOT_API TensorCasts weight_casts(const LinearConfig& config);
// The casts of backward: grad_output's for grad_input and grad_weight, and those that forward left out.
INGOT_API TensorCasts grad_output_casts(const LinearConfig& config);
INGOT_API TensorCasts input_casts_again(const LinearConfig& config);
INGOT_API TensorCasts weight_casts_again(const LinearConfig& config);

// Are both casts present and do they use the same scales? Then one set of scale_inv serves both.
INGOT_API bool share_scales(const TensorCasts& casts);

// The single cast that produces both sets of codes from a tensor of dtype `in`. At least one of them must be present.
// Where scaling is delayed or fixed, the spec has ScaleSource::given.
INGOT_API CastSpec cast_spec(const TensorCasts& casts, Dtype in);

// Returns for example "i:dyn_ten_e4m3fn w:dyn_ten_e4m3fn go:dyn_ten_e5m2 fast:output", or "high precision". A tensor
// whose second cast differs from its first also has " w_gi:..." (i_gw, go_gw); " hp:grad_weight" lists the GEMMs in
// high precision where only some are in FP8; " again:input" and " folded:input,weight" list tensors by OtherCodes.
// "del" stands for a delayed scale, "sta16" for a fixed scale of 16.
INGOT_API std::string print(const LinearConfig& config);

// Throws Error{invalid_spec} that names the broken rule. Casts are to FP8 dtypes, of both operands of a GEMM or of
// neither. The two casts of the input, of the weight and of grad_output are to the same format, with pow2 in both or in
// neither, and are equal where their scales are not dynamic. Granularities are those that a GEMM takes (tensor or row
// for each operand, or groups for both). Delayed and fixed scales cover whole tensors; a fixed scale is positive and
// finite. Fast accumulation is only for FP8 GEMMs without groups. OtherCodes has further rules, given there.
INGOT_API void validate(const LinearConfig& config);

}  // namespace ingot
