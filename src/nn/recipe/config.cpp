#include "ingot/nn/recipe/config.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <optional>
#include <utility>

#include "ingot/codegen/gemm/gemm_spec.h"
#include "ingot/codegen/types/dtype.h"
#include "ingot/runtime/util/error.h"

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

std::string print_scaling(const Cast& cast) {
  switch (cast.scaling) {
    case Scaling::dynamic: return "dyn";
    case Scaling::delayed: return "del";
    case Scaling::fixed: return fmt::format("sta{}", cast.scale);
  }
  return fmt::format("{}", static_cast<unsigned>(cast.scaling));
}

// Prints "dyn_ten_e4m3fn" or "dyn_row_e4m3fn_pow2": torchao's short form with this library's names.
std::string print(const Cast& cast) {
  const std::string granularity = cast.granularity == kTensorwise ? "ten" : print(cast.granularity);
  return fmt::format("{}_{}_{}{}", print_scaling(cast), granularity, name(cast.dtype), cast.pow2 ? "_pow2" : "");
}

std::string print(const std::optional<Cast>& cast) { return cast ? print(*cast) : "high precision"; }

[[noreturn]] void refuse_config(const std::string& message) {
  throw Error(ErrorCode::invalid_spec, "linear config", message);
}

void validate_cast(const NamedGemm& gemm, const char* operand, const Cast& cast) {
  if (!is_fp8(cast.dtype)) {
    refuse_config(
        fmt::format("{} of the {} GEMM is cast to {}, but must be cast to an FP8 format ({}), or to none for high "
                    "precision",
                    operand, gemm.name, name(cast.dtype), list(kFp8Dtypes)));
  }
  if (cast.scaling > Scaling::fixed) {
    refuse_config(fmt::format("{} of the {} GEMM has scaling {}, but it must be dynamic, delayed or fixed", operand,
                              gemm.name, static_cast<unsigned>(cast.scaling)));
  }
  if (cast.scaling != Scaling::dynamic && cast.granularity != kTensorwise) {
    refuse_config(fmt::format("{} of the {} GEMM is cast as {}, but {} scales cover whole tensors: set scale=tensor",
                              operand, gemm.name, print(cast), cast.scaling == Scaling::delayed ? "delayed" : "fixed"));
  }
  if (cast.scaling == Scaling::fixed && !(std::isfinite(cast.scale) && cast.scale > 0)) {
    refuse_config(fmt::format("{} of the {} GEMM has a fixed scale of {}, but it must be positive and finite", operand,
                              gemm.name, cast.scale));
  }
  if (cast.scaling == Scaling::fixed && cast.pow2) {
    refuse_config(fmt::format("{} of the {} GEMM has pow2 and a fixed scale: give a power of two", operand, gemm.name));
  }
  if (cast.scaling != Scaling::fixed && cast.scale != 0) {
    refuse_config(fmt::format("{} of the {} GEMM has the scale {}, which only a fixed cast takes", operand, gemm.name,
                              cast.scale));
  }
}

// The rule of validate(GemmSpec), in a message about the layer.
void validate_granularities(const NamedGemm& gemm) {
  const ScaleGranularity a = gemm.config->a->granularity;
  const ScaleGranularity b = gemm.config->b->granularity;
  const auto plain = [](ScaleGranularity scale) { return scale == kTensorwise || scale == kRowwise; };
  if ((plain(a) && plain(b)) || (a == kRowGroups && among(kGroupedScalesOfB, b))) return;
  refuse_config(fmt::format(
      "the {} GEMM has scale={} for {} and scale={} for {}, but takes tensor or row for each, or 1x128,1x128 "
      "or 1x128,128x128",
      gemm.name, print(a), gemm.a, print(b), gemm.b));
}

void validate_uses(const char* tensor, const char* gemm_1, const std::optional<Cast>& use_1, const char* gemm_2,
                   const std::optional<Cast>& use_2) {
  if (use_1 && use_2 && (use_1->dtype != use_2->dtype || use_1->pow2 != use_2->pow2)) {
    refuse_config(
        fmt::format("{} is cast as {} for the {} GEMM and as {} for the {} GEMM, but both must be to one format, with "
                    "pow2 in both or in neither: make them equal, or one of the GEMMs high precision",
                    tensor, print(*use_1), gemm_1, print(*use_2), gemm_2));
  }
  const bool given = use_1 && use_2 && (use_1->scaling != Scaling::dynamic || use_2->scaling != Scaling::dynamic);
  if (given && *use_1 != *use_2) {
    refuse_config(
        fmt::format("{} is cast as {} for the {} GEMM and as {} for the {} GEMM, but where scales are delayed or "
                    "fixed both must be equal",
                    tensor, print(*use_1), gemm_1, print(*use_2), gemm_2));
  }
}

struct FoldableTensor {
  const char* name;
  OtherCodes other;
  const std::optional<Cast>* use;  // in forward's GEMM
  const char* gemm;                // the name of backward's GEMM
  const GemmConfig* backward;
  const std::optional<Cast>* other_use;
};

void validate_other_codes(const FoldableTensor& t) {
  if (t.other == OtherCodes::together) return;
  if (t.other > OtherCodes::folded) {
    refuse_config(
        fmt::format("{} is {}, but it must be together, again or folded", t.name, static_cast<unsigned>(t.other)));
  }
  const char* const how = t.other == OtherCodes::again ? "again" : "folded";
  if (!is_float8(*t.backward)) {
    refuse_config(fmt::format("{} is {}, but the {} GEMM, which is to read its codes, is in high precision", t.name,
                              how, t.gemm));
  }
  if (t.other == OtherCodes::again) return;
  if (!*t.use || (*t.use)->granularity != kRowwise || **t.use != **t.other_use) {
    refuse_config(
        fmt::format("{} is folded, but is cast as {} for the output GEMM and as {} for the {} GEMM: both must be the "
                    "same, with scale=row",
                    t.name, print(*t.use), print(*t.other_use), t.gemm));
  }
  if (t.backward->a->scaling != Scaling::dynamic) {
    refuse_config(
        fmt::format("{} is folded into grad_output, which is then cast separately for the {} GEMM: its scales must be "
                    "dynamic, not {}",
                    t.name, t.gemm, print(t.backward->a)));
  }
}

TensorCasts in_forward(OtherCodes other, TensorCasts casts) {
  if (other == OtherCodes::again) casts.transposed.reset();
  if (other == OtherCodes::folded) {
    casts.transposed = casts.codes;
    casts.transposed->granularity = transposed(casts.codes->granularity);
  }
  return casts;
}

}  // namespace

TensorCasts input_casts(const LinearConfig& config) {
  return in_forward(config.input, {.codes = config.output.a, .transposed = config.grad_weight.b});
}

TensorCasts weight_casts(const LinearConfig& config) {
  return in_forward(config.weight, {.codes = config.output.b, .transposed = config.grad_input.b});
}

TensorCasts input_casts_again(const LinearConfig& config) {
  return {.transposed = config.input == OtherCodes::again ? config.grad_weight.b : std::nullopt};
}

TensorCasts weight_casts_again(const LinearConfig& config) {
  return {.transposed = config.weight == OtherCodes::again ? config.grad_input.b : std::nullopt};
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
                .pow2 = cast.pow2 && cast.scaling == Scaling::dynamic,
                .source = cast.scaling == Scaling::dynamic ? ScaleSource::dynamic : ScaleSource::given};
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
  append_both("i", "_gw", {.codes = config.output.a, .transposed = config.grad_weight.b});
  append_both("w", "_gi", {.codes = config.output.b, .transposed = config.grad_input.b});
  append_both("go", "_gw", grad_output_casts(config));
  std::string others;
  for (const auto& [other, word] : {std::pair{OtherCodes::again, "again"}, {OtherCodes::folded, "folded"}}) {
    std::string tensors;
    if (config.input == other) tensors += "input";
    if (config.weight == other) tensors += tensors.empty() ? "weight" : ",weight";
    if (!tensors.empty()) others += fmt::format(" {}:{}", word, tensors);
  }
  return casts.empty() ? "high precision" + fast : casts + high + fast + others;
}

void validate(const LinearConfig& config) {
  for (const NamedGemm& gemm : gemms(config)) {
    const GemmConfig& operands = *gemm.config;
    if (operands.a.has_value() != operands.b.has_value()) {
      refuse_config(
          fmt::format("incompatible operand precision for {}: {} is {} and {} is {}, but both operands of a GEMM "
                      "are cast, or neither",
                      gemm.name, gemm.a, print(operands.a), gemm.b, print(operands.b)));
    }
    if (operands.a) validate_cast(gemm, gemm.a, *operands.a);
    if (operands.b) validate_cast(gemm, gemm.b, *operands.b);
    if (is_float8(operands)) validate_granularities(gemm);
    if (operands.fast_accumulation && is_float8(operands) && among(kGroupedScalesOfB, operands.a->granularity)) {
      refuse_config(
          fmt::format("fast_accumulation is set for the {} GEMM, but its scales are grouped: each 128 of a sum "
                      "has its own scale_inv and is summed separately",
                      gemm.name));
    }
    if (operands.fast_accumulation && !is_float8(operands)) {
      refuse_config(
          fmt::format("fast_accumulation is set for the {} GEMM, but is for FP8 operands only: high-precision ones "
                      "always sum in f32",
                      gemm.name));
    }
  }
  validate_uses("input", "output", config.output.a, "grad_weight", config.grad_weight.b);
  validate_uses("weight", "output", config.output.b, "grad_input", config.grad_input.b);
  validate_uses("grad_output", "grad_input", config.grad_input.a, "grad_weight", config.grad_weight.a);
  validate_other_codes({.name = "input",
                        .other = config.input,
                        .use = &config.output.a,
                        .gemm = "grad_weight",
                        .backward = &config.grad_weight,
                        .other_use = &config.grad_weight.b});
  validate_other_codes({.name = "weight",
                        .other = config.weight,
                        .use = &config.output.b,
                        .gemm = "grad_input",
                        .backward = &config.grad_input,
                        .other_use = &config.grad_input.b});
}

}  // namespace ingot
