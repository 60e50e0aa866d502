#include "ingot/nn/config.h"

#include <fmt/format.h>

#include <array>
#include <vector>

#include "ingot/runtime/error.h"

namespace ingot {
namespace {

struct NamedGemm {
  const char* name;
  const char* a;
  const char* b;
  const GemmConfig* config;
};

std::array<NamedGemm, 3> gemms(const LinearConfig& config) {
  return {NamedGemm{"output", "input", "weight", &config.output},
          NamedGemm{"grad_input", "grad_output", "weight", &config.grad_input},
          NamedGemm{"grad_weight", "grad_output", "input", &config.grad_weight}};
}

bool is_float8(const GemmConfig& gemm) { return gemm.a && gemm.b; }

// "dyn_ten_e4m3fn", "dyn_row_e4m3fn_pow2": torchao's short form with our names.
std::string print(const Cast& cast) {
  const std::string granularity = cast.granularity == kTensorwise ? "ten" : print(cast.granularity);
  return fmt::format("dyn_{}_{}{}", granularity, name(cast.dtype), cast.pow2 ? "_pow2" : "");
}

std::string print(const std::optional<Cast>& cast) { return cast ? print(*cast) : "high precision"; }

[[noreturn]] void refuse(const std::string& message) { throw Error(ErrorCode::invalid_spec, "linear config", message); }

void validate_cast(const NamedGemm& gemm, const char* operand, const Cast& cast) {
  if (!is_fp8(cast.dtype)) {
    refuse(
        fmt::format("{} of the {} GEMM is cast to {}, but must be cast to an FP8 format (e4m3fn, e5m2, e4m3fnuz, "
                    "e5m2fnuz), or to none for high precision",
                    operand, gemm.name, name(cast.dtype)));
  }
  if (cast.granularity != kTensorwise && cast.granularity != kRowwise) {
    refuse(fmt::format("{} of the {} GEMM has scale={}, but must have scale=tensor or scale=row", operand, gemm.name,
                       print(cast.granularity)));
  }
}

void validate_uses(const char* tensor, const char* gemm_1, const std::optional<Cast>& use_1, const char* gemm_2,
                   const std::optional<Cast>& use_2) {
  if (use_1 && use_2 && (use_1->dtype != use_2->dtype || use_1->pow2 != use_2->pow2)) {
    refuse(
        fmt::format("{} is cast as {} for the {} GEMM and as {} for the {} GEMM, but both must be to one format, with "
                    "pow2 in both or in neither: make them equal, or one of the GEMMs high precision",
                    tensor, print(*use_1), gemm_1, print(*use_2), gemm_2));
  }
}

// In terms of a tensor whose transpose has this granularity.
ScaleGranularity transposed(ScaleGranularity granularity) { return {granularity.cols, granularity.rows}; }

}  // namespace

LinearConfig tensorwise() {
  const Cast forward{.dtype = Dtype::e4m3fn};
  const Cast gradient{.dtype = Dtype::e5m2};
  return {.output = {.a = forward, .b = forward, .fast_accumulation = true},
          .grad_input = {.a = gradient, .b = forward},
          .grad_weight = {.a = gradient, .b = forward}};
}

LinearConfig rowwise() {
  const Cast cast{.dtype = Dtype::e4m3fn, .granularity = kRowwise, .pow2 = true};
  return {.output = {.a = cast, .b = cast, .fast_accumulation = true},
          .grad_input = {.a = cast, .b = cast},
          .grad_weight = {.a = cast, .b = cast}};
}

LinearConfig rowwise_with_gw_hp() {
  LinearConfig config = rowwise();
  config.grad_input.b->granularity = kTensorwise;
  config.grad_weight = {};
  return config;
}

LinearConfig high_precision() { return {}; }

std::array<Recipe, 4> recipes() {
  return {Recipe{"high_precision", high_precision()}, Recipe{"tensorwise", tensorwise()}, Recipe{"rowwise", rowwise()},
          Recipe{"rowwise_with_gw_hp", rowwise_with_gw_hp()}};
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

TensorCasts input_casts(const LinearConfig& config) {
  return {.codes = config.output.a, .transposed = config.grad_weight.b};
}

TensorCasts weight_casts(const LinearConfig& config) {
  return {.codes = config.output.b, .transposed = config.grad_input.b};
}

TensorCasts grad_output_casts(const LinearConfig& config) {
  return {.codes = config.grad_input.a, .transposed = config.grad_weight.a};
}

bool share_scales(const TensorCasts& casts) {
  return casts.codes && casts.transposed && casts.codes->granularity == transposed(casts.transposed->granularity);
}

CastSpec cast_spec(const TensorCasts& casts, Dtype in) {
  const Cast& cast = casts.codes ? *casts.codes : *casts.transposed;
  CastSpec spec{.in = in,
                .out = cast.dtype,
                .scale = casts.codes ? cast.granularity : transposed(cast.granularity),
                .codes = casts.codes.has_value(),
                .transposed = casts.transposed.has_value(),
                .pow2 = cast.pow2};
  if (casts.codes && casts.transposed && !share_scales(casts)) {
    spec.transposed_scale = transposed(casts.transposed->granularity);
  }
  return spec;
}

std::string print(const LinearConfig& config) {
  std::string high;
  std::string fast;
  for (const NamedGemm& gemm : gemms(config)) {
    if (!is_float8(*gemm.config)) high += fmt::format("{}{}", high.empty() ? " hp:" : ",", gemm.name);
    if (gemm.config->fast_accumulation) fast += fmt::format("{}{}", fast.empty() ? " fast:" : ",", gemm.name);
  }
  std::string casts;
  const auto append = [&](const std::string& short_name, const std::optional<Cast>& cast) {
    if (cast) casts += fmt::format("{}{}:{}", casts.empty() ? "" : " ", short_name, print(*cast));
  };
  const auto append_both = [&](const std::string& short_name, const char* gemm, const TensorCasts& both) {
    append(short_name, both.codes ? both.codes : both.transposed);
    if (both.codes && both.transposed && *both.codes != *both.transposed) append(short_name + gemm, both.transposed);
  };
  append_both("i", "_gw", input_casts(config));
  append_both("w", "_gi", weight_casts(config));
  append_both("go", "_gw", grad_output_casts(config));
  return casts.empty() ? "high precision" + fast : casts + high + fast;
}

void validate(const LinearConfig& config) {
  for (const NamedGemm& gemm : gemms(config)) {
    const GemmConfig& operands = *gemm.config;
    if (operands.a.has_value() != operands.b.has_value()) {
      refuse(
          fmt::format("incompatible operand precision for {}: {} is {} and {} is {}, but both operands of a GEMM "
                      "are cast, or neither",
                      gemm.name, gemm.a, print(operands.a), gemm.b, print(operands.b)));
    }
    if (operands.a) validate_cast(gemm, gemm.a, *operands.a);
    if (operands.b) validate_cast(gemm, gemm.b, *operands.b);
    if (operands.fast_accumulation && !is_float8(operands)) {
      refuse(
          fmt::format("fast_accumulation is set for the {} GEMM, but is for FP8 operands only: high-precision ones "
                      "always sum in f32",
                      gemm.name));
    }
  }
  validate_uses("input", "output", config.output.a, "grad_weight", config.grad_weight.b);
  validate_uses("weight", "output", config.output.b, "grad_input", config.grad_input.b);
  validate_uses("grad_output", "grad_input", config.grad_input.a, "grad_weight", config.grad_weight.a);
}

}  // namespace ingot
