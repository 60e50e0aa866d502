// The recipes: configs by the names that the field knows.
#pragma once

#include <array>
#include <string>
#include <string_view>

#include "ingot/nn/config.h"

namespace ingot {

// e4m3 for input and weight, e5m2 for grad_output, one dynamic scale per tensor; fast accumulation in the output GEMM
// only. torchao's default.
LinearConfig tensorwise();
// The same with delayed scales: no pass for the maxima (DelayedScaling has them, and the layer needs one).
LinearConfig delayed();
// e4m3 throughout, a scale per row of each operand, powers of two; fast accumulation in the output GEMM only. Every
// tensor is cast along both of its dimensions, in one call, as scales of rows do not survive transposition. torchao's
// "rowwise".
LinearConfig rowwise();
// The same codes for both of a tensor's GEMMs: the row factors of input and weight are folded into grad_output
// (OtherCodes::folded). One cast of the input and of the weight, two of grad_output.
LinearConfig rowwise_folded();
// rowwise() with grad_weight in high precision and one scale for the weight of grad_input, so that nothing but the
// weight is cast twice: output = input (rows) @ weight^T (rows); grad_input = grad_output (rows) @ weight (tensor);
// grad_weight = grad_output^T @ input. torchao's "rowwise_with_gw_hp".
LinearConfig rowwise_with_gw_hp();
// DeepSeek-V3's: e4m3 throughout; activations and gradients with a scale for each 128 of what is summed over, weights
// for each 128 x 128; each 128 of a sum is scaled apart, in f32.
LinearConfig blockwise();
// All three GEMMs in the type of the tensors: the baseline.
LinearConfig high_precision();

struct Recipe {
  std::string_view name;
  LinearConfig config;
};

// The baseline first.
std::array<Recipe, 7> recipes();

// "high_precision, tensorwise, ..."
std::string recipe_names();

// The recipe of that name. Throws Error{invalid_argument} that lists the names.
LinearConfig recipe(std::string_view name);

}  // namespace ingot
