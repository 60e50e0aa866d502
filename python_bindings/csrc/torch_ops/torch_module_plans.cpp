#include "torch_ops/torch_module_plans.h"

#include "arrays/arrays.h"
#include "ingot/nn/modules/module_plans.h"
#include "ingot/nn/recipe/recipes.h"
#include "ingot/runtime/util/error.h"
#include "module.h"

namespace ingot::python {

LinearConfig ModuleText::config() const {
  const LinearConfig config = ingot::recipe(recipe);
  return weight_again ? casting_weight_again(config) : config;
}

LinearShape ModuleText::shape(std::size_t at) const {
  const auto& [out_features, in_features, weight, bias] = layers[at];
  return {.in_features = in_features, .out_features = out_features, .bias = bias.has_value()};
}

LinearPlanOptions ModuleText::options(std::size_t at) const {
  const auto& [out_features, in_features, weight, bias] = layers[at];
  return {.name = placeholder(at),
          .config = config(),
          .shape = shape(at),
          .dtypes = linear_dtypes(input, weight, bias),
          .grad_weight = grad_weight};
}

std::optional<NormOptions> ModuleText::norm_options() const {
  if (!norm) return std::nullopt;
  const auto& [kind, affine, eps, zero_centred] = *norm;
  return NormOptions{.kind = kind == "rms" ? NormKind::rms : NormKind::layer,
                     .affine = affine,
                     .eps = eps,
                     .zero_centred = zero_centred};
}

std::string ModuleText::sizes(std::size_t at) const {
  return sizes_text(std::get<1>(layers[at]), std::get<0>(layers[at]));
}

LinearDtypes linear_dtypes(const std::string& input, const std::optional<std::string>& weight,
                           const std::optional<std::string>& bias) {
  LinearDtypes made{.input = dtype_of(input, "input")};
  if (weight) made.weight = dtype_of(*weight, "weight");
  if (bias) made.bias = dtype_of(*bias, "bias");
  return made;
}

LinearConfig casting_weight_again(LinearConfig config) {
  if (is_float8(config.grad_input) && config.weight == OtherCodes::together) config.weight = OtherCodes::again;
  return config;
}

LinearConfig config_of_experts(const std::string& recipe, bool weight_again, bool fast_gradients) {
  LinearConfig config = ingot::recipe(recipe);
  for (GemmConfig* const gemm : {&config.grad_input, &config.grad_weight}) {
    if (fast_gradients && is_float8(*gemm)) gemm->fast_accumulation = true;
  }
  return weight_again ? casting_weight_again(config) : config;
}

std::int64_t add_linear(TorchPlan plan, bool frozen) {
  const LinearShape& shape = plan.plan.shape;
  std::vector<std::string> sizes{sizes_text(shape.in_features, shape.out_features)};
  const std::uint64_t identity = plan.plan.identity + (frozen ? 2 : plan.casts_whole_weights_again ? 1 : 0);
  const bool is_plain = identity == plan.plan.identity;
  return plans_of<TorchPlan>().add(is_plain ? identity : mix(identity), std::move(plan), std::move(sizes));
}

void bind_add(nanobind::module_& module, const std::string& family, AddModule add) {
  using namespace nanobind::literals;
  module.def(
      ("torch_" + family + "_plan").c_str(),
      [add](std::string subject, std::string recipe, std::string input, std::vector<LayerText> layers, bool grad_weight,
            std::optional<NormText> norm, std::string activation, bool fast_math, bool weight_again) {
        return add({.subject = std::move(subject),
                    .recipe = std::move(recipe),
                    .input = std::move(input),
                    .layers = std::move(layers),
                    .grad_weight = grad_weight,
                    .norm = std::move(norm),
                    .activation = std::move(activation),
                    .fast_math = fast_math,
                    .weight_again = weight_again});
      },
      "subject"_a, "recipe"_a, "input"_a, "layers"_a, "grad_weight"_a, "norm"_a.none(), "activation"_a, "fast_math"_a,
      "weight_again"_a);
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
