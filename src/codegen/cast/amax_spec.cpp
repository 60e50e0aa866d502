#include "ingot/codegen/cast/amax_spec.h"

#include <fmt/format.h>

#include "ingot/codegen/cast/cast_instances.h"
#include "ingot/codegen/types/spec_hash.h"
#include "ingot/codegen/types/spec_reader.h"
#include "ingot/codegen/types/template_text.h"

namespace ingot {

std::string print_spec(const AmaxSpec& spec) {
  std::string line = fmt::format("amax {} scale={}", name(spec.in), print(spec.scale));
  if (spec.second_scale) line += fmt::format("+{}", print(*spec.second_scale));
  if (spec.rounded) line += fmt::format(" rounded={}", name(*spec.rounded));
  if (spec.list) line += " list";
  return line;
}

void validate_spec(const AmaxSpec& spec) {
  require_dtype(spec, "in", spec.in, kHighPrecisionDtypes);
  if (spec.list) {
    require_scale(spec, "scale", spec.scale, kCastGranularities);
  } else if (spec.scale != kTensorwise && spec.scale != kRowwise && spec.scale != kColumnwise) {
    refuse(spec, fmt::format("scale is {}, but must be tensor, row or col", print(spec.scale)));
  }
  require_rounded(spec, spec.in, spec.rounded, spec.list, "only lists round their values first: set list");
  if (!spec.second_scale) return;
  require_scale(spec, "second_scale", *spec.second_scale, kCastGranularities);
  if (!spec.list) refuse(spec, "second_scale is set, but only lists find maxima of two kinds: set list, or call twice");
  if (*spec.second_scale == spec.scale) {
    refuse(spec, fmt::format("second_scale is {}, as scale is: leave it out", print(spec.scale)));
  }
}

std::uint64_t hash_spec(const AmaxSpec& spec) {
  const int rounded = spec.rounded ? 1 + static_cast<int>(*spec.rounded) : 0;
  const std::uint64_t second = spec.second_scale ? 0x9e3779b97f4a7c15U + mix(bits(*spec.second_scale)) : 0;
  return mix(seed<AmaxSpec>() + pack(spec.in, spec.list, rounded) + mix(bits(spec.scale)) + mix(second));
}

void read_spec(const SpecReader& reader, AmaxSpec& spec) {
  reader.require_words(2, "the input's dtype, such as bf16");
  spec.in = reader.dtype(reader.word(1));
  reader.each_option(2, "scale=<granularity>, rounded=<dtype> or list", [&](const SpecOption& option) -> const char* {
    const auto& [word, key, value] = option;
    if (word == "list") return spec.list = true, "list";
    if (key == "rounded") return spec.rounded = reader.dtype(value, word), "rounded";
    if (key != "scale") return nullptr;
    reader.granularities(option, spec.scale, spec.second_scale);
    return "scale";
  });
}

// No lists.
void list_valid(std::vector<AmaxSpec>& specs) {
  for (const Dtype in : kHighPrecisionDtypes) {
    for (const auto scale : {kTensorwise, kRowwise, kColumnwise}) specs.push_back({.in = in, .scale = scale});
  }
}

// ---- The instantiations of templates/cast/amax.cuh ------------------------------------------------------------------

TemplateInstance amax_partials(Dtype in) {
  return {"cast/amax.cuh", fmt::format("amax_partials<{}>", source_text(in)),
          print_spec(AmaxSpec{.in = in, .scale = kTensorwise}) + " (first pass)"};
}

TemplateInstance amax_rows(Dtype in) {
  return {"cast/amax.cuh", fmt::format("amax_rows<{}>", source_text(in)),
          print_spec(AmaxSpec{.in = in, .scale = kRowwise})};
}

TemplateInstance amax_tiles(const std::string& values, const FirstPass& wanted, const std::string& words, bool keeps) {
  const FieldText tensor = field("tensor", wanted.tensor);
  const FieldText rows = field("rows", wanted.rows);
  const FieldText columns = field("columns", wanted.columns);
  const std::string config = keeps ? aggregate_text("AmaxTilesConfig", {tensor, rows, columns, field("keeps", true)})
                                   : aggregate_text("AmaxTilesConfig", {tensor, rows, columns});
  return {"cast/amax.cuh", fmt::format("amax_tiles<{}, {}>", values, config),
          fmt::format("{}maxima of{}{}{} of {}", keeps ? "values and " : "", wanted.tensor ? " tensor" : "",
                      wanted.rows ? " rows" : "", wanted.columns ? " columns" : "", words)};
}

ExtraPasses extra_passes(const AmaxSpec& spec) { return {.first = spec.scale == kTensorwise && !spec.list}; }

TemplateInstance template_instance(const AmaxSpec& spec, Pass pass) {
  if (spec.list) {
    const std::string words = print(spec.scale) + (spec.second_scale ? "+" + print(*spec.second_scale) : "");
    return cast_list_maxima(
        {.in = spec.in, .list = true, .rounded = spec.rounded}, cast_output_config(true, spec.scale),
        cast_output_config(spec.second_scale.has_value(), spec.second_scale.value_or(spec.scale)), words);
  }
  if (pass == Pass::first) return amax_partials(spec.in);
  if (spec.scale == kColumnwise) {
    return amax_tiles(source_text(spec.in), {.columns = true}, std::string(name(spec.in)));
  }
  // The partial maxima are reduced as a matrix of one row.
  return amax_rows(spec.scale == kTensorwise ? Dtype::f32 : spec.in);
}

// ---- Scales ---------------------------------------------------------------------------------------------------------

std::string print_spec(const AmaxScalesSpec& spec) {
  return fmt::format("amax_scales {}{}", name(spec.out), spec.pow2 ? " pow2" : "");
}

void validate_spec(const AmaxScalesSpec& spec) { require_dtype(spec, "out", spec.out, kFp8Dtypes); }

std::uint64_t hash_spec(const AmaxScalesSpec& spec) { return mix(seed<AmaxScalesSpec>() + pack(spec.out, spec.pow2)); }

void read_spec(const SpecReader& reader, AmaxScalesSpec& spec) {
  reader.require_words(2, "the codes' dtype, such as e4m3fn");
  spec.out = reader.dtype(reader.word(1));
  reader.each_option(2, "pow2", [&](const SpecOption& option) -> const char* {
    return option.word == "pow2" ? (spec.pow2 = true, "pow2") : nullptr;
  });
}

void list_valid(std::vector<AmaxScalesSpec>& specs) {
  for (const Dtype out : kFp8Dtypes) {
    for (const bool pow2 : {false, true}) specs.push_back({.out = out, .pow2 = pow2});
  }
}

ExtraPasses extra_passes(const AmaxScalesSpec&) { return {}; }

// What a spec says are parameters of the kernel.
TemplateInstance template_instance(const AmaxScalesSpec&, Pass) {
  return {"cast/amax_scales.cuh", "amax_scales", "amax_scales"};
}

// ---- Histories ------------------------------------------------------------------------------------------------------

namespace {

const char* name_of(AmaxReduction reduction) {
  return reduction == AmaxReduction::max ? "max" : reduction == AmaxReduction::most_recent ? "most_recent" : "unknown";
}

}  // namespace

std::string print_spec(const AmaxHistorySpec& spec) {
  return fmt::format("amax_history reduce={}{}", name_of(spec.reduction), spec.finite ? " finite" : "");
}

void validate_spec(const AmaxHistorySpec& spec) {
  if (spec.reduction != AmaxReduction::max && spec.reduction != AmaxReduction::most_recent) {
    refuse(spec, fmt::format("reduction is {}, which is not valid; it must be max or most_recent",
                             static_cast<unsigned>(spec.reduction)));
  }
}

std::uint64_t hash_spec(const AmaxHistorySpec& spec) {
  return mix(seed<AmaxHistorySpec>() + pack(spec.reduction, spec.finite));
}

void read_spec(const SpecReader& reader, AmaxHistorySpec& spec) {
  constexpr const char* kForm = "reduce=max or reduce=most_recent";
  reader.require_words(2, kForm);
  const std::string& word = reader.word(1);
  if (word != "reduce=max" && word != "reduce=most_recent") reader.fail(fmt::format("\"{}\" must be {}", word, kForm));
  spec.reduction = word == "reduce=max" ? AmaxReduction::max : AmaxReduction::most_recent;
  reader.each_option(2, "finite", [&](const SpecOption& option) -> const char* {
    return option.word == "finite" ? (spec.finite = true, "finite") : nullptr;
  });
}

void list_valid(std::vector<AmaxHistorySpec>& specs) {
  for (const AmaxReduction reduction : kAmaxReductions) {
    for (const bool finite : {false, true}) specs.push_back({.reduction = reduction, .finite = finite});
  }
}

ExtraPasses extra_passes(const AmaxHistorySpec&) { return {}; }

// What a spec says are parameters of the kernel.
TemplateInstance template_instance(const AmaxHistorySpec&, Pass) {
  return {"cast/amax_history.cuh", "amax_history", "amax_history"};
}

}  // namespace ingot
