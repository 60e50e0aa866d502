#include "ingot/codegen/cast/cast_spec.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "ingot/codegen/types/spec_hash.h"
#include "ingot/codegen/types/spec_reader.h"

namespace ingot {
namespace {

std::string print_outputs(const CastSpec& spec) {
  std::vector<std::string> outputs;
  if (spec.codes) outputs.emplace_back("codes");
  if (spec.transposed) outputs.emplace_back("transposed");
  if (spec.result) outputs.emplace_back("result");
  if (spec.sum) outputs.push_back(fmt::format("sum:{}", name(*spec.sum)));
  if (spec.found_amax) outputs.push_back(fmt::format("amax:{}", print(*spec.found_amax)));
  return outputs.empty() ? "nothing" : fmt::format("{}", fmt::join(outputs, ","));
}

void require_expression(const CastSpec& spec) {
  if (spec.pointwise) return;
  constexpr const char* kNoExpression = "{} is set, but there is no pointwise expression: {}";
  if (spec.result) refuse(spec, fmt::format(kNoExpression, "result", "the values are the input's own elements"));
  if (spec.unrounded) refuse(spec, fmt::format(kNoExpression, "unrounded", "nothing is rounded before the cast"));
  if (spec.fast_math) refuse(spec, fmt::format(kNoExpression, "fast_math", "a cast alone has one result"));
}

void require_stackable(const CastSpec& spec) {
  if (!spec.stacked) return;
  const auto refuse_also = [&](bool also, const char* what, const char* advice) {
    if (also) refuse(spec, fmt::format("stacked is set, but {}: {}", what, advice));
  };
  refuse_also(spec.list, "the matrices of a list are tensors of their own", "leave one of them out");
  refuse_also(!spec.pointwise.empty(), "stacked matrices have no expression", "compute it first, with elementwise");
  refuse_also(spec.sum.has_value(), "stacked matrices have no column sums", "cast each of them alone");
}

void require_gatherable(const CastSpec& spec) {
  if (!spec.gathered) return;
  const auto refuse_also = [&](bool also, const char* what, const char* advice) {
    if (also) refuse(spec, fmt::format("gathered is set, but {}: {}", what, advice));
  };
  refuse_also(spec.list, "the matrices of a list have no index", "leave one of them out");
  refuse_also(spec.stacked, "stacked matrices have no index", "leave one of them out");
  refuse_also(!spec.pointwise.empty(), "gathered rows have no expression", "compute it first, with elementwise");
  refuse_also(spec.sum.has_value(), "gathered rows have no column sums", "cast without them");
  refuse_also(spec.source == ScaleSource::given && !spec.experts, "gathered rows have no given scales",
              "let them be dynamic, or set experts, which each have one");
}

void require_experts(const CastSpec& spec) {
  if (!spec.experts) return;
  const auto refuse_also = [&](bool also, const char* what, const char* advice) {
    if (also) refuse(spec, fmt::format("experts is set, but {}: {}", what, advice));
  };
  refuse_also(spec.list, "the matrices of a list have no experts", "leave one of them out");
  refuse_also(spec.stacked, "stacked matrices have no experts", "leave one of them out");
  refuse_also(spec.sum.has_value(), "experts' rows have no column sums", "cast without them");
  if (spec.source == ScaleSource::given) {
    return refuse_also(spec.scale != kTensorwise || spec.transposed_scale.has_value(),
                       "given scales are not one for each expert", "set scale=tensor");
  }
  const ScaleGranularity transposed = spec.transposed_scale.value_or(spec.scale);
  refuse_also(!spec.transposed || transposed != kColumnGroups || (spec.codes && spec.scale != kRowGroups),
              "its scales are not 1x128+128x1, or 128x1 of transposed codes alone",
              "other casts have no blocks along the rows, and know no experts");
}

void require_found_amax(const CastSpec& spec) {
  if (!spec.found_amax) return;
  const auto refuse_found = [&](const char* why) {
    refuse(spec, fmt::format("found_amax is {}, but {}", print(*spec.found_amax), why));
  };
  if (!spec.stacked) refuse_found("only stacked matrices write their maxima: set stacked, or find them with amax");
  if (spec.source == ScaleSource::given) {
    refuse_found("the scales are given: such a cast raises CastTensors::amax");
  }
  if (*spec.found_amax == kTensorwise && spec.scale == kTensorwise && !spec.transposed_scale) return;
  if (*spec.found_amax == kColumnwise && spec.scale == kRowwise && !spec.transposed) return;
  refuse_found("must be tensor where scale is tensor alone, or col where scale is row and codes are the only output");
}

void require_transposed_scale(const CastSpec& spec) {
  if (!spec.transposed_scale) return;
  require_scale(spec, "transposed_scale", *spec.transposed_scale, kCastGranularities);
  if (!spec.codes || !spec.transposed) {
    refuse(spec, fmt::format("transposed_scale is {}, but only a cast that writes both codes and transposed has two "
                             "kinds of scales: set scale alone",
                             print(*spec.transposed_scale)));
  }
  if (*spec.transposed_scale == spec.scale) {
    refuse(spec, fmt::format("transposed_scale is {}, as scale is: leave it out, both outputs then share the scales",
                             print(spec.scale)));
  }
}

void read_outputs(const SpecReader& reader, const SpecOption& option, CastSpec& spec) {
  spec.codes = false;
  SpecReader::each_part(option.value, [&](std::string_view output) {
    const auto set = [&](bool& flag) {
      if (flag) reader.fail(fmt::format("\"{}\" asks for {} a second time", option.word, output));
      flag = true;
    };
    if (output == "codes") return set(spec.codes);
    if (output == "transposed") return set(spec.transposed);
    if (output == "result") return set(spec.result);
    if (output.starts_with("amax:")) {
      if (spec.found_amax) reader.fail(fmt::format("\"{}\" asks for amax a second time", option.word));
      spec.found_amax = reader.granularity(output.substr(5), option.word);
      return;
    }
    if (!output.starts_with("sum:")) {
      reader.fail(
          fmt::format("\"{}\" in \"{}\" is not an output; expected codes, transposed, result, sum:<dtype> or "
                      "amax:<granularity>",
                      output, option.word));
    }
    if (spec.sum) reader.fail(fmt::format("\"{}\" asks for sum a second time", option.word));
    spec.sum = reader.dtype(output.substr(4), option.word);
  });
}

const char* take_option(const SpecReader& reader, const SpecOption& option, CastSpec& spec) {
  const auto& [word, key, value] = option;
  if (word == "unrounded") return spec.unrounded = true, "unrounded";
  if (word == "fast") return spec.fast_math = true, "fast";
  if (word == "list") return spec.list = true, "list";
  if (word == "stacked") return spec.stacked = true, "stacked";
  if (word == "gathered") return spec.gathered = true, "gathered";
  if (word == "experts") return spec.experts = true, "experts";
  if (word == "given") return spec.source = ScaleSource::given, "given";
  if (word == "pow2") return spec.pow2 = true, "pow2";
  if (key == "rounded") return spec.rounded = reader.dtype(value, word), "rounded";
  if (key == "of") return spec.pointwise = parse_pointwise(value), "the expression";
  if (key == "out") return read_outputs(reader, option, spec), "out";
  if (key != "scale") return nullptr;
  reader.granularities(option, spec.scale, spec.transposed_scale);
  return "scale";
}

// Casts between these dtypes: every pair of granularities, with scales of each source.
void list_casts(Dtype in, Dtype out, std::vector<CastSpec>& specs) {
  const auto append = [&](CastSpec spec) {
    spec.in = in;
    spec.out = out;
    specs.push_back(spec);
    spec.pow2 = true;
    specs.push_back(spec);
    spec.pow2 = false;
    spec.source = ScaleSource::given;
    specs.push_back(spec);
  };
  for (const ScaleGranularity scale : kCastGranularities) {
    append({.scale = scale, .codes = true, .transposed = false});
    append({.scale = scale, .codes = false, .transposed = true});
    append({.scale = scale, .codes = true, .transposed = true});
    for (const ScaleGranularity other : kCastGranularities) {
      if (other != scale) append({.scale = scale, .codes = true, .transposed = true, .transposed_scale = other});
    }
  }
}

}  // namespace

std::string print_spec(const CastSpec& spec) {
  std::string line = fmt::format("cast {}->{}", name(spec.in), name(spec.out));
  if (spec.pointwise) line += fmt::format(" of={}", print_word(spec.pointwise));
  line += fmt::format(" scale={}", print(spec.scale));
  if (spec.transposed_scale) line += fmt::format("+{}", print(*spec.transposed_scale));
  line += fmt::format(" out={}", print_outputs(spec));
  if (spec.source == ScaleSource::given) line += " given";
  if (spec.pow2) line += " pow2";
  if (spec.unrounded) line += " unrounded";
  if (spec.fast_math) line += " fast";
  if (spec.rounded) line += fmt::format(" rounded={}", name(*spec.rounded));
  if (spec.list) line += " list";
  if (spec.stacked) line += " stacked";
  if (spec.gathered) line += " gathered";
  if (spec.experts) line += " experts";
  return line;
}

void validate_spec(const CastSpec& spec) {
  require_dtype(spec, "in", spec.in, kHighPrecisionDtypes);
  require_dtype(spec, "out", spec.out, kFp8Dtypes);
  require_scale(spec, "scale", spec.scale, kCastGranularities);
  if (!spec.codes && !spec.transposed) {
    refuse(spec, "neither codes nor transposed is set, but a cast must write at least one of them");
  }
  require_expression(spec);
  require_rounded(spec, spec.in, spec.rounded, spec.list || spec.stacked,
                  "only lists and stacked matrices round their values first: set list or stacked");
  if (spec.rounded && spec.pointwise) {
    refuse(spec, "rounded is set, but an expression computes in f32 of what it reads: leave one of them out");
  }
  if (spec.sum) require_dtype(spec, "sum", *spec.sum, kHighPrecisionDtypes);
  if (spec.sum && spec.list) refuse(spec, "sum is set, but a list of casts has no column sums: cast that matrix alone");
  require_stackable(spec);
  require_gatherable(spec);
  require_experts(spec);
  require_found_amax(spec);
  require_transposed_scale(spec);
  require_source(spec, spec.source);
  if (spec.source == ScaleSource::given && spec.pow2) {
    refuse(spec, "pow2 is set, but the scales are given: round them where they are made");
  }
}

std::uint64_t hash_spec(const CastSpec& spec) {
  const std::uint64_t scale = mix(bits(spec.scale));
  const int flags = (spec.unrounded ? 1 : 0) | (spec.fast_math ? 2 : 0) | (spec.result ? 4 : 0) | (spec.pow2 ? 8 : 0) |
                    (spec.source == ScaleSource::given ? 16 : 0) | (spec.list ? 32 : 0) | (spec.stacked ? 64 : 0) |
                    (spec.gathered ? 128 : 0);
  const int sum = spec.sum ? 1 + static_cast<int>(*spec.sum) : 0;
  const int rounded = spec.rounded ? 1 + static_cast<int>(*spec.rounded) : 0;
  const std::uint64_t found = spec.found_amax ? mix(bits(*spec.found_amax) + 1) : spec.experts ? mix(~0U) : 0;
  return mix(seed<CastSpec>() + pack(spec.in, spec.out, spec.codes, spec.transposed, flags, sum, rounded) +
             mix(spec.pointwise.hash()) + found +
             (spec.transposed_scale ? mix(bits(*spec.transposed_scale) + 31 * scale + 0x9e3779b97f4a7c15U) : scale));
}

void read_spec(const SpecReader& reader, CastSpec& spec) {
  constexpr const char* kDtypes = "<in>-><out>, such as bf16->e4m3fn";
  reader.require_words(2, kDtypes);
  const std::string& dtypes = reader.word(1);
  const auto [in, out] = reader.halves(dtypes, "->", kDtypes);
  spec.in = reader.dtype(in, dtypes);
  spec.out = reader.dtype(out, dtypes);
  reader.each_option(
      2,
      "of=<expression>, scale=<granularity>, out=codes,transposed,result,sum:<dtype>,amax:<granularity>, "
      "given, pow2, unrounded, fast, rounded=<dtype>, list, stacked, gathered or experts",
      [&](const SpecOption& option) { return take_option(reader, option, spec); });
}

// No expression, sum, list, stacked matrices, gathered rows or experts, and so no found_amax.
void list_valid(std::vector<CastSpec>& specs) {
  for (const Dtype in : kHighPrecisionDtypes) {
    for (const Dtype out : kFp8Dtypes) list_casts(in, out, specs);
  }
}

}  // namespace ingot
