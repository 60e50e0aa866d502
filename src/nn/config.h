// How each of a linear layer's three GEMMs is computed. Plain values: a recipe is a function that returns one.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>

#include "ingot/codegen/dtype.h"
#include "ingot/codegen/granularity.h"
#include "ingot/codegen/kernel_spec.h"

namespace ingot {

// A dynamic cast of one operand of a GEMM. The granularity is in terms of the operand as the GEMM reads it, in rows
// along the dimension that it sums over: kRowwise is one scale for each row of output, or for each column, whichever of
// the tensor's dimensions that is (torchao's axiswise).
struct Cast {
  Dtype dtype = Dtype::e4m3fn;
  ScaleGranularity granularity = kTensorwise;
  bool pow2 = false;
  bool operator==(const Cast&) const = default;
};

// Both operands are cast, or neither (nullopt).
struct GemmConfig {
  std::optional<Cast> a{};
  std::optional<Cast> b{};
  bool fast_accumulation = false;
  bool operator==(const GemmConfig&) const = default;
};

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
  bool operator==(const LinearConfig&) const = default;
};

// ---- recipes -------------------------------------------------------------------------------------------------------

// e4m3 for input and weight, e5m2 for grad_output, one dynamic scale per tensor; fast accumulation in the output GEMM
// only. torchao's default.
LinearConfig tensorwise();
// e4m3 throughout, a scale per row of each operand, powers of two; fast accumulation in the output GEMM only. Every
// tensor is cast along both of its dimensions, in one call, as scales of rows do not survive transposition. torchao's
// "rowwise".
LinearConfig rowwise();
// The same with grad_weight in high precision and one scale for the weight of grad_input, so that nothing but the
// weight is cast twice: output = input (rows) @ weight^T (rows); grad_input = grad_output (rows) @ weight (tensor);
// grad_weight = grad_output^T @ input. torchao's "rowwise_with_gw_hp".
LinearConfig rowwise_with_gw_hp();
// All three GEMMs in the type of the tensors: the baseline.
LinearConfig high_precision();

struct Recipe {
  std::string_view name;
  LinearConfig config;
};

// The baseline first.
std::array<Recipe, 4> recipes();

// "high_precision, tensorwise, ..."
std::string recipe_names();

// The recipe of that name. Throws Error{invalid_argument} that lists the names.
LinearConfig recipe(std::string_view name);

// ---- what a config asks for ----------------------------------------------------------------------------------------

// The casts of one tensor: its codes as it lies, for one GEMM, and transposed, for another; nullopt where that GEMM is
// in high precision.
struct TensorCasts {
  std::optional<Cast> codes{};
  std::optional<Cast> transposed{};
};

// Of a valid config.
TensorCasts input_casts(const LinearConfig& config);        // for output; for grad_weight
TensorCasts weight_casts(const LinearConfig& config);       // for output; for grad_input
TensorCasts grad_output_casts(const LinearConfig& config);  // for grad_input; for grad_weight

// Are both asked for, with the same scales? Their codes then have one set of factors.
bool share_scales(const TensorCasts& casts);

// The one call that makes both, of a tensor of dtype `in`. At least one is asked for.
CastSpec cast_spec(const TensorCasts& casts, Dtype in);

// "i:dyn_ten_e4m3fn w:dyn_ten_e4m3fn go:dyn_ten_e5m2 fast:output", with " w_gi:..." (i_gw, go_gw) where a tensor's
// second cast is another than its first, with " hp:grad_weight" where only some GEMMs are FP8; or "high precision".
std::string print(const LinearConfig& config);

// Throws Error{invalid_spec} that names the rule broken: FP8 dtypes; both operands or neither; the two casts of input,
// of weight and of grad_output are to one format, with pow2 both or neither; scale=tensor or row; fast accumulation for
// FP8 GEMMs only.
void validate(const LinearConfig& config);

}  // namespace ingot
