// How each of a linear layer's three GEMMs is computed. Plain values: a recipe is a function that returns one.
#pragma once

#include <optional>
#include <string>

#include "ingot/codegen/dtype.h"
#include "ingot/codegen/granularity.h"

namespace ingot {

// A dynamic cast of one operand.
struct Cast {
  Dtype dtype = Dtype::e4m3fn;
  ScaleGranularity granularity = kTensorwise;
  bool pow2 = false;
  bool operator==(const Cast&) const = default;
};

// Both operands are cast, or neither (nullopt): a GEMM has no mixed form.
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

// e4m3 for input and weight, e5m2 for grad_output, one dynamic scale per tensor; fast accumulation in the output GEMM
// only. torchao's default.
LinearConfig tensorwise();
// All three GEMMs in the type of the tensors: the baseline.
LinearConfig high_precision();

// The one cast of a tensor, for whichever of its two GEMMs asks for it; nullopt where neither does. Of a valid config.
std::optional<Cast> input_cast(const LinearConfig& config);
std::optional<Cast> weight_cast(const LinearConfig& config);
std::optional<Cast> grad_output_cast(const LinearConfig& config);

// "i:dyn_ten_e4m3fn w:dyn_ten_e4m3fn go:dyn_ten_e5m2 fast:output", with " hp:grad_weight" where only some GEMMs are
// FP8, or "high precision".
std::string print(const LinearConfig& config);

// Throws Error{invalid_spec} that names the rule broken: FP8 dtypes; both operands or neither; one cast per tensor (the
// two uses of input, weight and grad_output agree); tensorwise scales (a rowwise one does not survive transposition);
// fast accumulation for FP8 GEMMs only.
void validate(const LinearConfig& config);

}  // namespace ingot
