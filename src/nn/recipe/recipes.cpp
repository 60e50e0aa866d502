#include "ingot/nn/recipe/recipes.h"

#include <fmt/format.h>

#include "ingot/runtime/util/error.h"

namespace ingot {

LinearConfig tensorwise() {
  const Cast forward{.dtype = Dtype::e4m3fn};
  const Cast gradient{.dtype = Dtype::e5m2};
  return {.output = {.a = forward, .b = forward, .fast_accumulation = true},
          .grad_input = {.a = gradient, .b = forward},
          .grad_weight = {.a = gradient, .b = forward}};
}

LinearConfig delayed() {
  LinearConfig config = tensorwise();
  for (GemmConfig* gemm : {&config.output, &config.grad_input, &config.grad_weight}) {
    gemm->a->scaling = gemm->b->scaling = Scaling::delayed;
  }
  return config;
}

LinearConfig rowwise() {
  const Cast cast{.dtype = Dtype::e4m3fn, .granularity = kRowwise, .pow2 = true};
  return {.output = {.a = cast, .b = cast, .fast_accumulation = true},
          .grad_input = {.a = cast, .b = cast},
          .grad_weight = {.a = cast, .b = cast}};
}

LinearConfig rowwise_folded() {
  LinearConfig config = rowwise();
  config.input = config.weight = OtherCodes::folded;
  return config;
}

LinearConfig rowwise_with_gw_hp() {
  LinearConfig config = rowwise();
  config.grad_input.b->granularity = kTensorwise;
  config.grad_weight = {};
  return config;
}

LinearConfig blockwise() {
  const Cast groups{.dtype = Dtype::e4m3fn, .granularity = kRowGroups};
  const Cast blocks{.dtype = Dtype::e4m3fn, .granularity = kBlocks};
  return {.output = {.a = groups, .b = blocks},
          .grad_input = {.a = groups, .b = blocks},
          .grad_weight = {.a = groups, .b = groups}};
}

LinearConfig high_precision() { return {}; }

std::array<Recipe, 7> recipes() {
  return {Recipe{"high_precision", high_precision()},
          Recipe{"tensorwise", tensorwise()},
          Recipe{"delayed", delayed()},
          Recipe{"rowwise", rowwise()},
          Recipe{"rowwise_folded", rowwise_folded()},
          Recipe{"rowwise_with_gw_hp", rowwise_with_gw_hp()},
          Recipe{"blockwise", blockwise()}};
}

std::string recipe_names() {
  std::string names;
  for (const Recipe& known : recipes()) names += fmt::format("{}{}", names.empty() ? "" : ", ", known.name);
  return names;
}

LinearConfig recipe(std::string_view name) {
  for (const Recipe& known : recipes()) {
    if (known.name == name) return known.config;
  }
  throw Error(ErrorCode::invalid_argument, "recipe", fmt::format("\"{}\" must be one of {}", name, recipe_names()));
}

}  // namespace ingot
