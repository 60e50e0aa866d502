#include "ingot/codegen/dequant/dequant_spec.h"
#include <fmt/format.h>
#include <algorithm>
#include <array>
#include <cstddef>
#include <utility>
#include "ingot/codegen/types/spec_hash.h"
#include "ingot/codegen/types/spec_reader.h"

namespace ingot {
namespace {

constexpr std::array<std::string_view, 3> kNames{"automatic", "sm90", "mma"};

// Fields that a tiling's text has at its end, where they are not 1.
struct Extra {
  std::string_view word;
  int DequantTiling::*field;
};
constexpr std::array kExtras{Extra{":waves", &DequantTiling::waves}, Extra{":multicast", &DequantTiling::multicast},
                             Extra{":blocks", &DequantTiling::blocks}};
constexpr std::string_view kStreamKSuffix = ":streamk";

}  // namespace

std::string_view name(DequantKernel kernel) {
  const auto index = static_cast<std::size_t>(kernel);
  return index < kNames.size() ? kNames[index] : "unknown kernel";
}

std::optional<DequantKernel> parse_dequant_kernel(std::string_view text) {
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    if (kNames[i] == text) return static_cast<DequantKernel>(i);
  }
  return std::nullopt;
}

std::string print(DequantKernel kernel, const DequantTiling& t) {
  const char* const instruction = t.wgmma ? "wgmma:" : kernel == DequantKernel::mma ? "" : "mma:";
  std::string text =
      fmt::format("{}{}x{}x{}:{}:{}:{}", instruction, t.tokens, t.rows, t.depth, t.stages, t.split, t.k_warps);
  for (const Extra& extra : kExtras) {
    if (t.*extra.field != 1) text += fmt::format("{}{}", extra.word, t.*extra.field);
  }
  if (t.stream_k) text += kStreamKSuffix;
  return text;
}

std::optional<DequantTiling> parse_dequant_tiling(DequantKernel kernel, std::string_view text) {
  DequantTiling tiling;
  tiling.wgmma = text.starts_with("wgmma:");
  if (tiling.wgmma) {
    text.remove_prefix(6);
  } else if (kernel != DequantKernel::mma) {
    if (!text.starts_with("mma:")) return std::nullopt;
    text.remove_prefix(4);
  }
  tiling.stream_k = kernel != DequantKernel::mma && text.ends_with(kStreamKSuffix);
  if (tiling.stream_k) text.remove_suffix(kStreamKSuffix.size());
  // Read from the end: each extra field at most once, in their order, and none that says 1.
  for (auto extra = kExtras.rbegin(); extra != kExtras.rend(); ++extra) {
    const auto at = text.rfind(extra->word);
    if (at == std::string_view::npos) continue;
    std::string_view number = text.substr(at + extra->word.size());
    const std::optional<int> value = take_number(number, '\0');
    if (!value || *value == 1) return std::nullopt;
    tiling.*(extra->field) = *value;
    text = text.substr(0, at);
  }
  for (const auto& [field, end] :
       {std::pair{&tiling.tokens, 'x'}, std::pair{&tiling.rows, 'x'}, std::pair{&tiling.depth, ':'},
        std::pair{&tiling.stages, ':'}, std::pair{&tiling.split, ':'}, std::pair{&tiling.k_warps, '\0'}}) {
    const std::optional<int> value = take_number(text, end);
    if (!value) return std::nullopt;
    *field = *value;
  }
  return tiling;
}

namespace {

constexpr std::array<std::pair<WeightLayout, std::string_view>, 3> kLayouts{{{WeightLayout::row_major, "row_major"},
                                                                             {WeightLayout::packed, "packed"},
                                                                             {WeightLayout::packed_f16, "packed_f16"}}};

Dtype read_dtype(const SpecReader& reader, std::string_view text) {
  return reader.dtype_among(text,
                            fmt::format("{}, f32, {} or e8m0fnu", list(kDequantActivations), list(kWeightDtypes)));
}

// <x>*<weight>-><out>
void read_dtypes(const SpecReader& reader, DequantMatmulSpec& spec) {
  constexpr const char* kForm = "<x>*<weight>-><out>, such as bf16*e4m3fn->bf16";
  reader.require_words(2, kForm);
  const std::string_view word = reader.word(1);
  const auto [operands, out] = reader.halves(word, "->", kForm);
  const auto [x, weight] = reader.halves(operands, "*", kForm, word);
  spec.x = read_dtype(reader, x);
  spec.weight = read_dtype(reader, weight);
  spec.out = read_dtype(reader, out);
}

void read_kernel(const SpecReader& reader, std::string_view value, DequantMatmulSpec& spec) {
  const auto colon = value.find(':');
  const std::string_view kernel = value.substr(0, colon);
  spec.kernel = reader.parsed(parse_dequant_kernel, kernel, {}, "kernel", "automatic, sm90 or mma");
  if (colon == std::string_view::npos) return;
  const std::string_view tiling = value.substr(colon + 1);
  spec.tiling = parse_dequant_tiling(spec.kernel, tiling);
  if (spec.tiling) return;
  const bool is_mma = spec.kernel == DequantKernel::mma;
  reader.fail(fmt::format(
      "\"{}\" is no tiling of {}; expected one such as {} (tokens x rows x depth, stages, split, units along K{})",
      tiling, kernel, is_mma ? "16x64x128:3:1:2" : "mma:16x128x128:8:2:1",
      is_mma ? "" : "; after it :waves2, :multicast2, :blocks2, :streamk"));
}

const char* take_option(const SpecReader& reader, const SpecOption& option, DequantMatmulSpec& spec) {
  const auto& [word, key, value] = option;
  if (const auto layout = parse_weight_layout(word)) return spec.layout = *layout, "the layout";
  if (word == "bias") return spec.bias = true, "bias";
  if (word == "batch_invariant") return spec.batch_invariant = true, "batch_invariant";
  if (word == "experts") return spec.experts = true, "experts";
  if (!option.has_value()) return nullptr;
  if (key == "scale") return spec.scale = reader.granularity(value, {}, one_of(kDequantGranularities)), "scale";
  if (key == "factors") return spec.scale_inv = read_dtype(reader, value), "factors";
  if (key == "epilogue") return spec.pointwise = parse_pointwise(value), "the expression";
  if (key == "kernel") return read_kernel(reader, value, spec), "kernel";
  return nullptr;
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

std::string print_spec(const PackWeightSpec& spec) {
  const std::string layout =
      spec.layout == WeightLayout::packed ? std::string() : fmt::format(" {}", name(spec.layout));
  return fmt::format("pack_weight {}{}{}", name(spec.weight), layout, spec.unpack ? " unpack" : "");
}

std::string print_spec(const DequantMatmulSpec& spec) {
  std::string line = fmt::format("dequant_matmul {}*{}->{} {} scale={}", name(spec.x), name(spec.weight),
                                 name(spec.out), name(spec.layout), print(spec.scale));
  if (spec.scale_inv != Dtype::f32) line += fmt::format(" factors={}", name(spec.scale_inv));
  if (spec.bias) line += " bias";
  if (spec.pointwise) line += fmt::format(" epilogue={}", print_word(spec.pointwise));
  if (spec.batch_invariant) line += " batch_invariant";
  if (spec.experts) line += " experts";
  if (spec.kernel != DequantKernel::automatic || spec.tiling) line += fmt::format(" kernel={}", name(spec.kernel));
  if (spec.tiling) line += fmt::format(":{}", print(spec.kernel, *spec.tiling));
  return line;
}

std::uint64_t hash_spec(const PackWeightSpec& spec) {
  return mix(seed<PackWeightSpec>() + pack(spec.weight, spec.layout, spec.unpack));
}

std::uint64_t hash_spec(const DequantMatmulSpec& spec) {
  const auto flags =
      (spec.bias ? 1 : 0) | (spec.batch_invariant ? 2 : 0) | (spec.tiling ? 4 : 0) | (spec.experts ? 8 : 0);
  const DequantTiling t = spec.tiling.value_or(DequantTiling{});
  return mix(
      seed<DequantMatmulSpec>() + pack(spec.x, spec.weight, spec.out, spec.scale_inv, spec.layout, flags, spec.kernel) +
      (spec.pointwise ? mix(spec.pointwise.hash()) : 0) +
      mix(bits(spec.scale) + mix(pack(t.wgmma, t.tokens / 8, t.rows / 16, t.depth / 32, t.stages, t.split, t.k_warps) +
                                 mix(pack(t.waves, t.multicast, t.blocks, t.stream_k)))));
}

void read_spec(const SpecReader& reader, PackWeightSpec& spec) {
  reader.require_words(2, "the weight's dtype, such as e4m3fn");
  spec.weight = read_dtype(reader, reader.word(1));
  reader.each_option(2, "packed, packed_f16 or unpack", [&](const SpecOption& option) -> const char* {
    if (option.word == "unpack") return spec.unpack = true, "unpack";
    const std::optional<WeightLayout> layout = parse_weight_layout(option.word);
    if (!layout || !is_packed(*layout)) return nullptr;
    return spec.layout = *layout, "the layout";
  });
}

void read_spec(const SpecReader& reader, DequantMatmulSpec& spec) {
  read_dtypes(reader, spec);
  reader.each_option(2,
                     "packed, packed_f16, row_major, scale=<granularity>, factors=<dtype>, bias, "
                     "epilogue=<expression>, batch_invariant, experts or kernel=<kernel>",
                     [&](const SpecOption& option) { return take_option(reader, option, spec); });
}

void list_valid(std::vector<PackWeightSpec>& specs) {
  for (const Dtype weight : kWeightDtypes) {
    for (const WeightLayout layout : {WeightLayout::packed, WeightLayout::packed_f16}) {
      for (const bool unpack : {false, true}) specs.push_back({.weight = weight, .layout = layout, .unpack = unpack});
    }
  }
}

// Without an expression, a bias, batch_invariant and a tiling, once for each kernel that takes it; with experts, packed
// weights whose outputs are as x.
void list_valid(std::vector<DequantMatmulSpec>& specs) {
  const auto append = [&](DequantMatmulSpec spec) {
    for (const auto& [layout, name] : kLayouts) {
      for (const DequantKernel kernel : {DequantKernel::mma, DequantKernel::sm90}) {
        if (kernel == DequantKernel::sm90 && layout == WeightLayout::row_major) continue;
        spec.layout = layout;
        spec.kernel = kernel;
        spec.experts = false;
        specs.push_back(spec);
        if (layout != WeightLayout::packed || spec.out != spec.x) continue;
        spec.experts = true;
        specs.push_back(spec);
      }
    }
  };
  for (const Dtype x : kDequantActivations) {
    for (const Dtype weight : kWeightDtypes) {
      for (const Dtype out : {x, Dtype::f32}) {
        for (const ScaleGranularity scale : kDequantGranularities)
          append({.x = x, .weight = weight, .out = out, .scale = scale});
        append({.x = x, .weight = weight, .out = out, .scale = kRowGroups32, .scale_inv = Dtype::e8m0fnu});
      }
    }
  }
}

}  // namespace ingot
