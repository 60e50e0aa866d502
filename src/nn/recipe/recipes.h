// The recipes: functions that return LinearConfigs by name. Most names are the field's (tensorwise, delayed, rowwise,
// rowwise_with_gw_hp, blockwise).
#pragma once

#include <array>
#include <string>
#include <string_view>

#include "ingot/api.h"
#include "ingot/nn/recipe/config.h"

namespace ingot {

// torchao's default. e4m3 for input and weight, e5m2 for grad_output; one dynamic scale per tensor; fast accumulation
// only in the output GEMM.
INGOT_API LinearConfig tensorwise();
// tensorwise() with delayed scales, which saves the pass that finds the maxima. The layer needs a DelayedScaling, which
// holds them.
INGOT_API LinearConfig delayed();
// torchao's "rowwise". e4m3 throughout; one power-of-two scale per row of each operand; fast accumulation only in the
// output GEMM. Because row scales do not survive transposition, one call casts every tensor along both of its
// dimensions.
INGOT_API LinearConfig rowwise();
// rowwise(), but the input has the same codes in both of its GEMMs, and so has the weight: their row scale_inv are
// folded into grad_output (OtherCodes::folded). Casts the input and the weight once, and grad_output twice.
INGOT_API LinearConfig rowwise_folded();
// torchao's "rowwise_with_gw_hp": rowwise() with grad_weight in high precision and a single scale for the weight in
// grad_input, so that only the weight is cast twice. output = input (rows) @ weight^T (rows); grad_input = grad_output
// (rows) @ weight (tensor); grad_weight = grad_output^T @ input.
INGOT_API LinearConfig rowwise_with_gw_hp();
// DeepSeek-V3's. e4m3 throughout; activations and gradients have a scale for each 128 elements along the summed
// dimension, weights for each 128 x 128 block; each partial sum of 128 is scaled separately, in f32.
INGOT_API LinearConfig blockwise();
// The baseline: all three GEMMs in the dtype of the tensors.
INGOT_API LinearConfig high_precision();

struct Recipe {
  std::string_view name;
  LinearConfig config;
};

// All recipes, the baseline first.
INGOT_API std::array<Recipe, 7> recipes();

// "high_precision, tensorwise, ..."
INGOT_API std::string recipe_names();

// Returns the recipe of that name. Throws Error{invalid_argument} that lists the names.
INGOT_API LinearConfig recipe(std::string_view name);

}  // namespace ingot
