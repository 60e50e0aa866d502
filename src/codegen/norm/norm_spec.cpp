#include "ingot/codegen/norm/norm_spec.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <utility>

#include "ingot/codegen/norm/norm_spec_text.h"
#include "ingot/codegen/types/spec_words.h"
#include "ingot/runtime/error.h"

namespace ingot {
namespace {

const char* name_of(NormKind kind) {
  return kind == NormKind::layer ? "layer" : kind == NormKind::rms ? "rms" : "unknown";
}

template <class Spec>
[[noreturn]] void refuse(const Spec& spec, const std::string& message) {
  throw Error(ErrorCode::invalid_spec, print_spec(spec), message);
}

template <class Spec>
void require(bool holds, const Spec& spec, const std::string& message) {
  if (!holds) refuse(spec, message);
}

template <class Spec>
void require_dtype(const Spec& spec, const char* field, Dtype dtype, std::span<const Dtype> allowed) {
  if (const std::string fault = dtype_fault(field, dtype, allowed); !fault.empty()) refuse(spec, fault);
}

template <class Spec>
void require_kind(const Spec& spec) {
  require(spec.kind == NormKind::layer || spec.kind == NormKind::rms, spec,
          fmt::format("kind is {}, which is none; it must be layer or rms", static_cast<unsigned>(spec.kind)));
}

void require_scale_of_codes(const NormSpec& spec) {
  if (spec.source == ScaleSource::dynamic) {
    require(spec.scale == kRowwise, spec,
            fmt::format("scale is {}, but dynamic ones must be row: a norm sees one row at a time. Write the "
                        "statistics and cast with an expression of them for any other",
                        print(spec.scale)));
  } else {
    require(
        spec.source == ScaleSource::given, spec,
        fmt::format("source is {}, which is none; it must be dynamic or given", static_cast<unsigned>(spec.source)));
    require(spec.scale == kTensorwise, spec,
            fmt::format("scale is {}, but a given one must be tensor", print(spec.scale)));
    require(!spec.pow2, spec, "pow2 is set, but the scale is given: round it where it is made");
  }
}

}  // namespace

// ---- print -------------------------------------------------------------------------------------------------------

std::string print_spec(const NormSpec& spec) {
  std::vector<std::string_view> outputs;
  if (spec.out) outputs.emplace_back("codes");
  if (spec.result) outputs.emplace_back("result");
  if (spec.stats) outputs.emplace_back("stats");
  if (outputs.empty()) outputs.emplace_back("nothing");
  std::string line = fmt::format("norm {} {}", name_of(spec.kind), name(spec.in));
  if (spec.out) line += fmt::format("->{}", name(*spec.out));
  if (spec.affine) line += " affine";
  // Without codes there is no scale; one that is there by mistake is shown, because validate_spec() quotes this line.
  if (spec.out || spec.scale != kRowwise) line += fmt::format(" scale={}", print(spec.scale));
  line += fmt::format(" out={}", fmt::join(outputs, ","));
  if (spec.source == ScaleSource::given) line += " given";
  if (spec.pow2) line += " pow2";
  return line;
}

std::string print_spec(const NormBackwardSpec& spec) {
  std::string line = fmt::format("norm_backward {} {}", name_of(spec.kind), name(spec.in));
  if (spec.affine) line += " affine";
  if (spec.affine || spec.sums != Dtype::f32) line += fmt::format(" sums={}", name(spec.sums));
  return line;
}

// ---- validate ----------------------------------------------------------------------------------------------------

void validate_spec(const NormSpec& spec) {
  require_kind(spec);
  require_dtype(spec, "in", spec.in, kHighPrecisionDtypes);
  require(spec.out || spec.result || spec.stats, spec,
          "nothing is written: set out (the dtype of the codes), result or stats");
  require(!spec.affine || spec.out || spec.result, spec,
          "affine is set, but only stats are written, which do not depend on gamma and beta");
  if (spec.out) {
    require_dtype(spec, "out", *spec.out, kFp8Dtypes);
    require_scale_of_codes(spec);
  } else {
    require(spec.scale == kRowwise && spec.source == ScaleSource::dynamic && !spec.pow2, spec,
            "scale, given and pow2 are for codes, but out, their dtype, is not set");
  }
}

void validate_spec(const NormBackwardSpec& spec) {
  require_kind(spec);
  require_dtype(spec, "in", spec.in, kHighPrecisionDtypes);
  if (!spec.affine) {
    require(spec.sums == Dtype::f32, spec, "sums is set, but without affine there are no gradients of gamma and beta");
  } else {
    require(spec.sums == Dtype::f32 || spec.sums == spec.in, spec,
            fmt::format("sums is {}, but must be {}", name(spec.sums),
                        spec.in == Dtype::f32 ? "f32" : fmt::format("f32 or {}, as in is", name(spec.in))));
  }
}

// ---- parse -------------------------------------------------------------------------------------------------------

namespace {

class NormParser {
 public:
  NormParser(std::string_view line, std::span<const std::string> words) : line_(line), words_(words) {}

  NormSpec norm() const {
    require_words("<in>-><out> or <in>, such as bf16->e4m3fn");
    NormSpec spec{.kind = kind()};
    const auto arrow = words_[2].find("->");
    spec.in = dtype(words_[2].substr(0, arrow));
    if (arrow != std::string::npos) spec.out = dtype(words_[2].substr(arrow + 2));
    each_option("affine, scale=<granularity>, out=codes,result,stats, given or pow2",
                [&](const std::string& word, std::string_view key, std::string_view value) -> const char* {
                  if (word == "affine") return spec.affine = true, "affine";
                  if (word == "given") return spec.source = ScaleSource::given, "given";
                  if (word == "pow2") return spec.pow2 = true, "pow2";
                  if (key == "scale") return spec.scale = granularity(value), "scale";
                  if (key == "out") return outputs(spec, word, value), "out";
                  return nullptr;
                });
    return spec;
  }

  NormBackwardSpec backward() const {
    require_words("<in>, such as bf16");
    NormBackwardSpec spec{.kind = kind(), .in = dtype(words_[2])};
    each_option("affine or sums=<dtype>",
                [&](const std::string& word, std::string_view key, std::string_view value) -> const char* {
                  if (word == "affine") return spec.affine = true, "affine";
                  if (key == "sums") return spec.sums = dtype(value), "sums";
                  return nullptr;
                });
    return spec;
  }

 private:
  [[noreturn]] void fail(const std::string& message) const {
    throw Error(ErrorCode::invalid_spec, std::string(line_), message);
  }

  void require_words(const char* dtypes) const {
    if (words_.size() < 3) fail(fmt::format("\"{}\" must be followed by layer or rms and {}", words_[0], dtypes));
  }

  NormKind kind() const {
    if (words_[1] == "layer") return NormKind::layer;
    if (words_[1] == "rms") return NormKind::rms;
    fail(fmt::format("\"{}\" is no kind of {}; expected layer or rms", words_[1], words_[0]));
  }

  Dtype dtype(std::string_view text) const {
    if (const auto dtype = parse_dtype(text)) return *dtype;
    fail(fmt::format("\"{}\" is no dtype; expected {}, {}", text, list(kHighPrecisionDtypes), list(kFp8Dtypes)));
  }

  ScaleGranularity granularity(std::string_view text) const {
    if (const auto granularity = parse_granularity(text)) return *granularity;
    fail(fmt::format("\"{}\" is no granularity; expected tensor, row, col or <rows>x<cols>", text));
  }

  void each_option(const char* form, const TakeOption& take) const {
    const std::string fault = options_fault(words_, 3, form, take);
    if (!fault.empty()) fail(fault);
  }

  void outputs(NormSpec& spec, const std::string& word, std::string_view value) const {
    bool codes = false;
    spec.result = spec.stats = false;  // of an earlier list, which is refused later
    while (true) {
      const auto comma = value.find(',');
      const std::string_view output = value.substr(0, comma);
      bool* const flag = output == "codes"    ? &codes
                         : output == "result" ? &spec.result
                         : output == "stats"  ? &spec.stats
                                              : nullptr;
      if (flag == nullptr || *flag) fail(fmt::format("\"{}\" must list codes, result and stats at most once", word));
      *flag = true;
      if (comma == std::string_view::npos) break;
      value.remove_prefix(comma + 1);
    }
    if (codes != spec.out.has_value()) {
      fail(codes ? fmt::format("\"{}\" lists codes, but \"{}\" gives no dtype for them", word, words_[2])
                 : fmt::format("\"{}\" lists no codes, but \"{}\" gives a dtype for them", word, words_[2]));
    }
  }

  std::string_view line_;
  std::span<const std::string> words_;
};

}  // namespace

NormSpec parse_norm(std::string_view line, std::span<const std::string> words) {
  return NormParser(line, words).norm();
}

NormBackwardSpec parse_norm_backward(std::string_view line, std::span<const std::string> words) {
  return NormParser(line, words).backward();
}

// ---- all ---------------------------------------------------------------------------------------------------------

std::vector<NormSpec> all_valid_norms() {
  std::vector<NormSpec> specs;
  const auto append = [&](NormSpec spec) {
    for (const bool affine : {false, true}) {
      for (const bool result : {false, true}) {
        for (const bool stats : {false, true}) {
          spec.affine = affine;
          spec.result = result;
          spec.stats = stats;
          if (spec.out || result || (stats && !affine)) specs.push_back(spec);
        }
      }
    }
  };
  for (const NormKind kind : {NormKind::layer, NormKind::rms}) {
    for (const Dtype in : kHighPrecisionDtypes) {
      append({.kind = kind, .in = in});
      for (const Dtype out : kFp8Dtypes) {
        append({.kind = kind, .in = in, .out = out});
        append({.kind = kind, .in = in, .out = out, .pow2 = true});
        append({.kind = kind, .in = in, .out = out, .scale = kTensorwise, .source = ScaleSource::given});
      }
    }
  }
  return specs;
}

std::vector<NormBackwardSpec> all_valid_norm_backwards() {
  std::vector<NormBackwardSpec> specs;
  for (const NormKind kind : {NormKind::layer, NormKind::rms}) {
    for (const Dtype in : kHighPrecisionDtypes) {
      specs.push_back({.kind = kind, .in = in});
      specs.push_back({.kind = kind, .in = in, .affine = true});
      if (in != Dtype::f32) specs.push_back({.kind = kind, .in = in, .affine = true, .sums = in});
    }
  }
  return specs;
}

}  // namespace ingot
