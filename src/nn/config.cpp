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
  if (cast.granularity != kTensorwise) {
    refuse(
        fmt::format("{} of the {} GEMM has scale={}, but must have scale=tensor: its codes are transposed for "
                    "another GEMM, which only one scale per tensor survives",
                    operand, gemm.name, print(cast.granularity)));
  }
}

void validate_uses(const char* tensor, const char* gemm_1, const std::optional<Cast>& use_1, const char* gemm_2,
                   const std::optional<Cast>& use_2) {
  if (use_1 && use_2 && *use_1 != *use_2) {
    refuse(
        fmt::format("{} is cast as {} for the {} GEMM and as {} for the {} GEMM, but one cast serves both: make "
                    "them equal, or one of the GEMMs high precision",
                    tensor, print(*use_1), gemm_1, print(*use_2), gemm_2));
  }
}

}  // namespace

LinearConfig tensorwise() {
  const Cast forward{.dtype = Dtype::e4m3fn};
  const Cast gradient{.dtype = Dtype::e5m2};
  return {.output = {.a = forward, .b = forward, .fast_accumulation = true},
          .grad_input = {.a = gradient, .b = forward},
          .grad_weight = {.a = gradient, .b = forward}};
}

LinearConfig high_precision() { return {}; }

std::optional<Cast> input_cast(const LinearConfig& config) {
  return config.output.a ? config.output.a : config.grad_weight.b;
}

std::optional<Cast> weight_cast(const LinearConfig& config) {
  return config.output.b ? config.output.b : config.grad_input.b;
}

std::optional<Cast> grad_output_cast(const LinearConfig& config) {
  return config.grad_input.a ? config.grad_input.a : config.grad_weight.a;
}

std::string print(const LinearConfig& config) {
  std::string high;
  std::string fast;
  for (const NamedGemm& gemm : gemms(config)) {
    if (!is_float8(*gemm.config)) high += fmt::format("{}{}", high.empty() ? " hp:" : ",", gemm.name);
    if (gemm.config->fast_accumulation) fast += fmt::format("{}{}", fast.empty() ? " fast:" : ",", gemm.name);
  }
  std::string casts;
  const auto append = [&](const char* short_name, const std::optional<Cast>& cast) {
    if (cast) casts += fmt::format("{}{}:{}", casts.empty() ? "" : " ", short_name, print(*cast));
  };
  append("i", input_cast(config));
  append("w", weight_cast(config));
  append("go", grad_output_cast(config));
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
