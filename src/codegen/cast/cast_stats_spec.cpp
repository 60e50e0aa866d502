#include "ingot/codegen/cast/cast_stats_spec.h"

#include <fmt/format.h>

#include <algorithm>

#include "ingot/codegen/types/spec_hash.h"
#include "ingot/codegen/types/spec_reader.h"
#include "ingot/codegen/types/template_text.h"

#include "cast/cast_stats.cuh"

namespace ingot {

// Without codes there is no scale; one that is set by mistake is printed, because validate_spec() quotes this line.
std::string print_spec(const CastStatsSpec& spec) {
  std::string line = fmt::format("cast_stats {}", name(spec.in));
  if (spec.out) line += fmt::format("->{}", name(*spec.out));
  if (spec.out || spec.scale != kTensorwise) line += fmt::format(" scale={}", print(spec.scale));
  if (spec.transposed) line += " transposed";
  return line;
}

void validate_spec(const CastStatsSpec& spec) {
  require_dtype(spec, "in", spec.in, kHighPrecisionDtypes);
  if (spec.out) {
    require_dtype(spec, "out", *spec.out, kFp8Dtypes);
    return require_scale(spec, "scale", spec.scale, kCastGranularities);
  }
  if (spec.scale != kTensorwise || spec.transposed) {
    refuse(spec, fmt::format("{} is set, but there are no codes: set out", spec.transposed ? "transposed" : "scale"));
  }
}

std::uint64_t hash_spec(const CastStatsSpec& spec) {
  const auto out = spec.out ? 1 + static_cast<int>(*spec.out) : 0;
  return mix(seed<CastStatsSpec>() + pack(spec.in, out, spec.transposed) + mix(bits(spec.scale)));
}

void read_spec(const SpecReader& reader, CastStatsSpec& spec) {
  reader.require_words(2, "<in> or <in>-><out>, such as bf16->e4m3fn");
  const std::string_view dtypes = reader.word(1);
  const auto arrow = dtypes.find("->");
  spec.in = reader.dtype(dtypes.substr(0, arrow), dtypes);
  if (arrow != std::string_view::npos) spec.out = reader.dtype(dtypes.substr(arrow + 2), dtypes);
  reader.each_option(2, "scale=<granularity> or transposed", [&](const SpecOption& option) -> const char* {
    if (option.word == "transposed") return spec.transposed = true, "transposed";
    if (option.key != "scale") return nullptr;
    return spec.scale = reader.granularity(option.value, option.word), "scale";
  });
}

void list_valid(std::vector<CastStatsSpec>& specs) {
  for (const Dtype in : kHighPrecisionDtypes) {
    specs.push_back({.in = in});
    for (const Dtype out : kFp8Dtypes) {
      for (const auto scale : kCastGranularities) {
        for (const bool transposed : {false, true}) {
          specs.push_back({.in = in, .out = out, .scale = scale, .transposed = transposed});
        }
      }
    }
  }
}

// ---- The instantiations of templates/cast/cast_stats.cuh ------------------------------------------------------------

static_assert(std::ranges::all_of(kCastGranularities,
                                  [](ScaleGranularity scale) { return has_factor_steps(scale.rows, scale.cols); }),
              "factor_steps() of templates/cast/cast_stats.cuh lacks one of kCastGranularities");

ExtraPasses extra_passes(const CastStatsSpec&) { return {.first = true}; }

// The granularity is a parameter of the kernel.
TemplateInstance template_instance(const CastStatsSpec& spec, Pass pass) {
  if (pass == Pass::main) return {"cast/cast_stats.cuh", "cast_stats_finish", "cast_stats (finish)"};
  return {
      "cast/cast_stats.cuh",
      fmt::format("cast_stats_tiles<{}, {}, {}>", type_text(spec.in), spec.out ? type_text(*spec.out) : "ingot::Uncast",
                  aggregate_text("CastStatsConfig", {field("transposed", spec.transposed)})),
      fmt::format("cast_stats {}{}{}", name(spec.in), spec.out ? fmt::format("->{}", name(*spec.out)) : "",
                  spec.transposed ? " transposed" : "")};
}

}  // namespace ingot
