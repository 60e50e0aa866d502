#include "ingot/codegen/dequant/dequant_spec.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <utility>

#include "ingot/codegen/dequant/dequant_granularities.h"
#include "ingot/codegen/dequant/dequant_spec_text.h"
#include "ingot/codegen/dequant/dequant_tiling.h"
#include "ingot/codegen/types/spec_words.h"
#include "ingot/runtime/error.h"

namespace ingot {
namespace {

constexpr std::array kActivations{Dtype::bf16, Dtype::f16};
constexpr const char* kScaleNames = "tensor, row, 1x128, 1x64, 1x32 or 128x128";

constexpr std::array<std::pair<WeightLayout, std::string_view>, 3> kLayouts{{{WeightLayout::row_major, "row_major"},
                                                                             {WeightLayout::packed, "packed"},
                                                                             {WeightLayout::packed_f16, "packed_f16"}}};

bool is_layout(WeightLayout layout) { return layout <= WeightLayout::packed_f16; }

template <class Spec>
[[noreturn]] void refuse(const Spec& spec, const std::string& message) {
  throw Error(ErrorCode::invalid_spec, print_spec(spec), message);
}

template <class Spec>
void require_dtype(const Spec& spec, const char* field, Dtype dtype, std::span<const Dtype> allowed) {
  if (const std::string fault = dtype_fault(field, dtype, allowed); !fault.empty()) refuse(spec, fault);
}

void require_factors(const DequantMatmulSpec& spec) {
  if (std::ranges::find(kDequantGranularities, spec.scale) == kDequantGranularities.end()) {
    refuse(spec, fmt::format("scale is {}, but must be {}", print(spec.scale), kScaleNames));
  }
  if (spec.factors != Dtype::f32 && spec.factors != Dtype::e8m0fnu) {
    refuse(spec, fmt::format("factors is {}, but must be f32 or e8m0fnu", name(spec.factors)));
  }
  if (spec.factors == Dtype::e8m0fnu && spec.scale != kRowGroups32) {
    refuse(spec, fmt::format("factors is e8m0fnu and scale is {}, but MX's factors are of groups of 32: write "
                             "scale=1x32, or factors of f32",
                             print(spec.scale)));
  }
}

void require_kernel(const DequantMatmulSpec& spec) {
  if (spec.kernel > DequantKernel::mma) {
    refuse(spec, fmt::format("kernel is {}, which is none; it must be automatic, sm90 or mma",
                             static_cast<unsigned>(spec.kernel)));
  }
  if (spec.kernel == DequantKernel::automatic) {
    if (!spec.tiling) return;
    refuse(spec, fmt::format("tiling is {}, but kernel is automatic: name the kernel that it is of",
                             print(spec.kernel, *spec.tiling)));
  }
  if (spec.kernel == DequantKernel::sm90 && spec.layout == WeightLayout::row_major) {
    refuse(spec, "layout is row_major, but kernel sm90 reads packed weights: pack the weight, or leave kernel out");
  }
  if (!spec.tiling) return;
  if (const std::string fault = dequant_tiling_fault(spec, *spec.tiling); !fault.empty()) {
    refuse(spec, fmt::format("tiling has {}", fault));
  }
  if (spec.tiling->stream_k && spec.batch_invariant) {
    refuse(
        spec,
        "tiling has stream-K, whose cuts depend on the number of tokens, but batch_invariant is asked for: leave one "
        "of the two out");
  }
}

}  // namespace

std::string_view name(WeightLayout layout) {
  const auto* const found = std::ranges::find(kLayouts, layout, &std::pair<WeightLayout, std::string_view>::first);
  return found != kLayouts.end() ? found->second : "unknown_layout";
}

std::optional<WeightLayout> parse_weight_layout(std::string_view text) {
  const auto* const found = std::ranges::find(kLayouts, text, &std::pair<WeightLayout, std::string_view>::second);
  if (found == kLayouts.end()) return std::nullopt;
  return found->first;
}

// ---- print -------------------------------------------------------------------------------------------------------

std::string print_spec(const PackWeightSpec& spec) {
  const std::string layout =
      spec.layout == WeightLayout::packed ? std::string() : fmt::format(" {}", name(spec.layout));
  return fmt::format("pack_weight {}{}{}", name(spec.weight), layout, spec.unpack ? " unpack" : "");
}

std::string print_spec(const DequantMatmulSpec& spec) {
  std::string line = fmt::format("dequant_matmul {}*{}->{} {} scale={}", name(spec.x), name(spec.weight),
                                 name(spec.out), name(spec.layout), print(spec.scale));
  if (spec.factors != Dtype::f32) line += fmt::format(" factors={}", name(spec.factors));
  if (spec.bias) line += " bias";
  if (spec.pointwise) {
    std::string expression = print(spec.pointwise);
    std::erase(expression, ' ');
    line += fmt::format(" epilogue={}", expression);
  }
  if (spec.batch_invariant) line += " batch_invariant";
  if (spec.kernel != DequantKernel::automatic || spec.tiling) line += fmt::format(" kernel={}", name(spec.kernel));
  if (spec.tiling) line += fmt::format(":{}", print(spec.kernel, *spec.tiling));
  return line;
}

// ---- validate ----------------------------------------------------------------------------------------------------

void validate_spec(const PackWeightSpec& spec) {
  require_dtype(spec, "weight", spec.weight, kWeightDtypes);
  if (!is_layout(spec.layout) || !is_packed(spec.layout)) {
    refuse(spec, "layout is none of packed weights; it must be packed or packed_f16");
  }
}

void validate_spec(const DequantMatmulSpec& spec) {
  require_dtype(spec, "x", spec.x, kActivations);
  require_dtype(spec, "weight", spec.weight, kWeightDtypes);
  if (spec.out != spec.x && spec.out != Dtype::f32) {
    refuse(spec, fmt::format("out is {}, but must be {}, as x is, or f32", name(spec.out), name(spec.x)));
  }
  require_factors(spec);
  if (!is_layout(spec.layout)) {
    refuse(spec, fmt::format("layout is {}, which is none; it must be {}", static_cast<unsigned>(spec.layout),
                             kWeightLayoutNames));
  }
  for (const PointwiseInput& input : spec.pointwise.inputs()) {
    if (input.kind != PointwiseInput::Kind::column_f32) continue;
    refuse(spec,
           fmt::format("epilogue reads {0}[col:f32], but vectors along the columns are of {1} here: write {0}[col]",
                       input.name, name(spec.x)));
  }
  require_kernel(spec);
}

// ---- parse -------------------------------------------------------------------------------------------------------

namespace {

// The words of one line, and the errors that quote them.
class DequantParser {
 public:
  DequantParser(std::string_view line, std::span<const std::string> words) : line_(line), words_(words) {}

  PackWeightSpec pack() const {
    if (words_.size() < 2) fail("\"pack_weight\" must be followed by the weight's dtype, such as e4m3fn");
    PackWeightSpec spec{.weight = dtype(words_[1])};
    each_option("packed, packed_f16 or unpack",
                [&](const std::string& word, std::string_view, std::string_view) -> const char* {
                  if (word == "unpack") return spec.unpack = true, "unpack";
                  const std::optional<WeightLayout> layout = parse_weight_layout(word);
                  if (!layout || !is_packed(*layout)) return nullptr;
                  return spec.layout = *layout, "the layout";
                });
    return spec;
  }

  DequantMatmulSpec matmul() const {
    DequantMatmulSpec spec = dtypes();
    each_option(
        "packed, packed_f16, row_major, scale=<granularity>, factors=<dtype>, bias, epilogue=<expression>, "
        "batch_invariant "
        "or kernel=<kernel>",
        [&](const std::string& word, std::string_view key, std::string_view value) -> const char* {
          if (const auto layout = parse_weight_layout(word)) return spec.layout = *layout, "the layout";
          if (word == "bias") return spec.bias = true, "bias";
          if (word == "batch_invariant") return spec.batch_invariant = true, "batch_invariant";
          if (key == "scale") return spec.scale = granularity(value), "scale";
          if (key == "factors") return spec.factors = dtype(value), "factors";
          if (key == "epilogue") return spec.pointwise = parse_pointwise(value), "the expression";
          if (key == "kernel") return kernel(spec, value), "kernel";
          return nullptr;
        });
    return spec;
  }

 private:
  [[noreturn]] void fail(const std::string& message) const {
    throw Error(ErrorCode::invalid_spec, std::string(line_), message);
  }

  Dtype dtype(std::string_view text) const {
    if (const auto dtype = parse_dtype(text)) return *dtype;
    fail(fmt::format("\"{}\" is no dtype; expected {}, f32, {} or e8m0fnu", text, list(kActivations),
                     list(kWeightDtypes)));
  }

  // <x>*<weight>-><out>
  DequantMatmulSpec dtypes() const {
    const std::string_view word = words_.size() < 2 ? std::string_view() : std::string_view(words_[1]);
    const auto star = word.find('*');
    const auto arrow = word.find("->");
    if (star == std::string_view::npos || arrow == std::string_view::npos || arrow < star) {
      fail(word.empty() ? "\"dequant_matmul\" must be followed by <x>*<weight>-><out>, such as bf16*e4m3fn->bf16"
                        : fmt::format("\"{}\" must be <x>*<weight>-><out>, such as bf16*e4m3fn->bf16", word));
    }
    return {.x = dtype(word.substr(0, star)),
            .weight = dtype(word.substr(star + 1, arrow - star - 1)),
            .out = dtype(word.substr(arrow + 2))};
  }

  ScaleGranularity granularity(std::string_view text) const {
    if (const auto granularity = parse_granularity(text)) return *granularity;
    fail(fmt::format("\"{}\" is no granularity; expected {}", text, kScaleNames));
  }

  void kernel(DequantMatmulSpec& spec, std::string_view value) const {
    const auto colon = value.find(':');
    const std::string_view text = value.substr(0, colon);
    const auto kernel = parse_dequant_kernel(text);
    if (!kernel) fail(fmt::format("\"{}\" is no kernel; expected automatic, sm90 or mma", text));
    spec.kernel = *kernel;
    if (colon == std::string_view::npos) return;
    spec.tiling = parse_dequant_tiling(spec.kernel, value.substr(colon + 1));
    if (spec.tiling) return;
    fail(fmt::format(
        "\"{}\" is no tiling of {}; expected one such as {} (tokens x rows x depth, stages, split, units "
        "along K{})",
        value.substr(colon + 1), text, *kernel == DequantKernel::mma ? "16x64x128:3:1:2" : "mma:16x128x128:8:2:1",
        *kernel == DequantKernel::mma ? "" : "; behind it :waves2, :multicast2, :blocks2, :streamk"));
  }

  void each_option(const char* form, const TakeOption& take) const {
    const std::string fault = options_fault(words_, 2, form, take);
    if (!fault.empty()) fail(fault);
  }

  std::string_view line_;
  std::span<const std::string> words_;
};

}  // namespace

PackWeightSpec parse_pack_weight(std::string_view line, std::span<const std::string> words) {
  return DequantParser(line, words).pack();
}

DequantMatmulSpec parse_dequant_matmul(std::string_view line, std::span<const std::string> words) {
  return DequantParser(line, words).matmul();
}

// ---- all ---------------------------------------------------------------------------------------------------------

std::vector<PackWeightSpec> all_valid_pack_weights() {
  std::vector<PackWeightSpec> specs;
  for (const Dtype weight : kWeightDtypes) {
    for (const WeightLayout layout : {WeightLayout::packed, WeightLayout::packed_f16}) {
      for (const bool unpack : {false, true}) specs.push_back({.weight = weight, .layout = layout, .unpack = unpack});
    }
  }
  return specs;
}

std::vector<DequantMatmulSpec> all_valid_dequant_matmuls() {
  std::vector<DequantMatmulSpec> specs;
  const auto append = [&](DequantMatmulSpec spec) {
    for (const auto& [layout, name] : kLayouts) {
      for (const DequantKernel kernel : {DequantKernel::mma, DequantKernel::sm90}) {
        if (kernel == DequantKernel::sm90 && layout == WeightLayout::row_major) continue;
        spec.layout = layout;
        spec.kernel = kernel;
        specs.push_back(spec);
      }
    }
  };
  for (const Dtype x : kActivations) {
    for (const Dtype weight : kWeightDtypes) {
      for (const Dtype out : {x, Dtype::f32}) {
        for (const ScaleGranularity scale : kDequantGranularities)
          append({.x = x, .weight = weight, .out = out, .scale = scale});
        append({.x = x, .weight = weight, .out = out, .scale = kRowGroups32, .factors = Dtype::e8m0fnu});
      }
    }
  }
  return specs;
}

}  // namespace ingot
