#include "torch_ops/torch_module_plans.h"

#include "arrays/arrays.h"
#include "ingot/nn/modules/mlp_plan.h"
#include "ingot/nn/recipe/recipes.h"
#include "ingot/runtime/error.h"
#include "module.h"
#include "torch_ops/torch_plans.h"

namespace ingot::python {

std::optional<NormOptions> norm_options(const std::optional<NormText>& norm) {
  if (!norm) return std::nullopt;
  const auto& [kind, affine, eps, zero_centred] = *norm;
  return NormOptions{.kind = kind == "rms" ? NormKind::rms : NormKind::layer,
                     .affine = affine,
                     .eps = eps,
                     .zero_centred = zero_centred};
}

LinearDtypes linear_dtypes(const DtypeTexts& dtypes) {
  const auto& [input, weight, bias] = dtypes;
  LinearDtypes made{.input = dtype_of(input.value_or(""), "input"), .weight = dtype_of(weight.value_or(""), "weight")};
  if (bias) made.bias = dtype_of(*bias, "bias");
  return made;
}

LinearConfig config_of(const std::string& recipe_name, bool weight_again) {
  const LinearConfig config = recipe(recipe_name);
  return weight_again ? casting_weight_again(config) : config;
}

Pointwise activation_of(const std::string& subject, const std::string& text) {
  if (text.empty()) return {};
  Pointwise expression;
  try {
    expression = parse_pointwise(text);
  } catch (const Error& error) {
    throw Error(ErrorCode::invalid_spec, subject + " activation", error.message());
  }
  if (expression.inputs().empty()) return expression;
  throw Error(ErrorCode::invalid_spec, subject + " activation",
              "\"" + text +
                  "\" must be an expression of x alone, such as silu(x): apply what needs other tensors after "
                  "the layer");
}

void bind_torch_modules(nanobind::module_& module) {
  module.def("torch_check_activation",
             [](const std::string& subject, const std::string& text) { activation_of(subject, text); });
  // Whether it is one of x and up.
  module.def("torch_check_mlp_activation", [](const std::string& subject, const std::string& text) {
    return mlp_plan({.activation = text, .subject = subject}).gated;
  });
}

}  // namespace ingot::python
