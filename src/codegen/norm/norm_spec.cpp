#include "ingot/codegen/norm/norm_spec.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>

#include "ingot/codegen/cast/cast_instances.h"
#include "ingot/codegen/norm/norm_columns.h"
#include "ingot/codegen/types/spec_hash.h"
#include "ingot/codegen/types/spec_reader.h"
#include "ingot/codegen/types/template_text.h"

namespace ingot {
namespace {

const char* name_of(NormKind kind) {
  return kind == NormKind::layer ? "layer" : kind == NormKind::rms ? "rms" : "unknown";
}

template <class Spec>
void require_kind(const Spec& spec) {
  if (spec.kind == NormKind::layer || spec.kind == NormKind::rms) return;
  refuse(spec,
         fmt::format("kind is {}, which is not valid; it must be layer or rms", static_cast<unsigned>(spec.kind)));
}

void require_scale_of_codes(const NormSpec& spec) {
  if (spec.source == ScaleSource::dynamic) {
    if (spec.scale == kRowwise) return;
    refuse(spec, fmt::format("scale is {}, but dynamic ones must be row: a norm sees one row at a time. Write the "
                             "statistics and cast with an expression of them for any other",
                             print(spec.scale)));
  }
  require_source(spec, spec.source);
  if (spec.scale != kTensorwise) {
    refuse(spec, fmt::format("scale is {}, but a given one must be tensor", print(spec.scale)));
  }
  if (spec.pow2) refuse(spec, "pow2 is set, but the scale is given: round it where it is made");
}

NormKind read_kind(const SpecReader& reader, const char* dtypes) {
  reader.require_words(3, fmt::format("layer or rms and {}", dtypes));
  const std::string& word = reader.word(1);
  if (word == "layer") return NormKind::layer;
  if (word == "rms") return NormKind::rms;
  reader.fail(fmt::format("\"{}\" is no kind of {}; expected layer or rms", word, reader.word(0)));
}

void read_outputs(const SpecReader& reader, const SpecOption& option, NormSpec& spec) {
  bool codes = false;
  spec.result = spec.stats = false;  // a second list starts anew; it is refused later
  SpecReader::each_part(option.value, [&](std::string_view output) {
    bool* const flag = output == "codes"    ? &codes
                       : output == "result" ? &spec.result
                       : output == "stats"  ? &spec.stats
                                            : nullptr;
    if (flag == nullptr || *flag) {
      reader.fail(fmt::format("\"{}\" must list codes, result and stats at most once", option.word));
    }
    *flag = true;
  });
  if (codes == spec.out.has_value()) return;
  reader.fail(
      codes ? fmt::format("\"{}\" lists codes, but \"{}\" gives no dtype for them", option.word, reader.word(2))
            : fmt::format("\"{}\" lists no codes, but \"{}\" gives a dtype for them", option.word, reader.word(2)));
}

// The columns that name a kernel of pairs: as many as its steps have.
constexpr std::int32_t kColsPerStep = NormRowsWideLaunch::kColsPerStep;

bool names_kernel(const NormSpec& spec) { return spec.cols != 0 && norm_kernel_cols(spec, spec.cols) == spec.cols; }

void list_norms(NormSpec spec, std::vector<NormSpec>& specs) {
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
}

}  // namespace

std::string print_spec(const NormSpec& spec) {
  std::vector<std::string_view> outputs;
  if (spec.out) outputs.emplace_back("codes");
  if (spec.result) outputs.emplace_back("result");
  if (spec.stats) outputs.emplace_back("stats");
  if (outputs.empty()) outputs.emplace_back("nothing");
  std::string line = fmt::format("norm {} {}", name_of(spec.kind), name(spec.in));
  if (spec.out) line += fmt::format("->{}", name(*spec.out));
  if (spec.affine) line += " affine";
  // Without codes there is no scale; one that is set by mistake is printed, because validate_spec() quotes this line.
  if (spec.out || spec.scale != kRowwise) line += fmt::format(" scale={}", print(spec.scale));
  line += fmt::format(" out={}", fmt::join(outputs, ","));
  if (spec.source == ScaleSource::given) line += " given";
  if (spec.pow2) line += " pow2";
  if (spec.cols != 0) line += fmt::format(" cols={}", spec.cols);
  return line;
}

std::string print_spec(const NormBackwardSpec& spec) {
  std::string line = fmt::format("norm_backward {} {}", name_of(spec.kind), name(spec.in));
  if (spec.affine) line += " affine";
  if (spec.zero_centred) line += " zero_centred";
  if (spec.affine || spec.sums != Dtype::f32) line += fmt::format(" sums={}", name(spec.sums));
  return line;
}

void validate_spec(const NormSpec& spec) {
  require_kind(spec);
  require_dtype(spec, "in", spec.in, kHighPrecisionDtypes);
  if (!spec.out && !spec.result && !spec.stats) {
    refuse(spec, "nothing is written: set out (the dtype of the codes), result or stats");
  }
  if (spec.affine && !spec.out && !spec.result) {
    refuse(spec, "affine is set, but only stats are written, which do not depend on gamma and beta");
  }
  if (spec.out) {
    require_dtype(spec, "out", *spec.out, kFp8Dtypes);
    require_scale_of_codes(spec);
  } else if (spec.scale != kRowwise || spec.source != ScaleSource::dynamic || spec.pow2) {
    refuse(spec, "scale, given and pow2 are for codes, but out, their dtype, is not set");
  }
  if (spec.cols == 0 || names_kernel(spec)) return;
  refuse(spec, fmt::format("cols is {}, but must be 0, or {} or {} for codes alone of bf16 or f16, or 1024, 2048, 4096 "
                           "or {} where they are affine and their scales dynamic",
                           spec.cols, NormRowsWideLaunch::kMinVec8s * kColsPerStep, NormRowsWideLaunch::kMaxCols,
                           NormRowsFullLaunch::kMaxCols));
}

void validate_spec(const NormBackwardSpec& spec) {
  require_kind(spec);
  require_dtype(spec, "in", spec.in, kHighPrecisionDtypes);
  if (spec.zero_centred && !spec.affine) refuse(spec, "zero_centred is set, but without affine there is no gamma");
  if (spec.sums == Dtype::f32 || (spec.affine && spec.sums == spec.in)) return;
  if (!spec.affine) refuse(spec, "sums is set, but without affine there are no gradients of gamma and beta");
  refuse(spec, fmt::format("sums is {}, but must be {}", name(spec.sums),
                           spec.in == Dtype::f32 ? "f32" : fmt::format("f32 or {}, as in is", name(spec.in))));
}

std::uint64_t hash_spec(const NormSpec& spec) {
  const auto flags = (spec.affine ? 1 : 0) | (spec.result ? 2 : 0) | (spec.stats ? 4 : 0) | (spec.pow2 ? 8 : 0);
  const auto out = spec.out ? 1 + static_cast<int>(*spec.out) : 0;
  return mix(seed<NormSpec>() + pack(spec.kind, spec.in, out, flags, spec.source) +
             mix(bits(spec.scale) + static_cast<std::uint64_t>(spec.cols)));
}

std::uint64_t hash_spec(const NormBackwardSpec& spec) {
  return mix(seed<NormBackwardSpec>() + pack(spec.kind, spec.in, spec.sums, spec.affine, spec.zero_centred));
}

void read_spec(const SpecReader& reader, NormSpec& spec) {
  spec.kind = read_kind(reader, "<in>-><out> or <in>, such as bf16->e4m3fn");
  const std::string_view dtypes = reader.word(2);
  const auto arrow = dtypes.find("->");
  spec.in = reader.dtype(dtypes.substr(0, arrow));
  if (arrow != std::string_view::npos) spec.out = reader.dtype(dtypes.substr(arrow + 2));
  reader.each_option(3, "affine, scale=<granularity>, out=codes,result,stats, given, pow2 or cols=<columns>",
                     [&](const SpecOption& option) -> const char* {
                       if (option.word == "affine") return spec.affine = true, "affine";
                       if (option.word == "given") return spec.source = ScaleSource::given, "given";
                       if (option.word == "pow2") return spec.pow2 = true, "pow2";
                       if (!option.has_value()) return nullptr;
                       if (option.key == "scale") return spec.scale = reader.granularity(option.value), "scale";
                       if (option.key == "out") return read_outputs(reader, option, spec), "out";
                       if (option.key != "cols") return nullptr;
                       spec.cols = reader.number(option.value, option.word, "number of columns", "one such as 16384");
                       return "cols";
                     });
  // Files of 0.1.0 name kernels for other norms and wider rows too, which norm_rows takes now.
  const bool named = spec.cols >= 12288 && spec.cols <= 65536 && spec.cols % kColsPerStep == 0;
  if (named && !names_kernel(spec)) spec.cols = 0;
}

void read_spec(const SpecReader& reader, NormBackwardSpec& spec) {
  spec.kind = read_kind(reader, "<in>, such as bf16");
  spec.in = reader.dtype(reader.word(2));
  reader.each_option(3, "affine, zero_centred or sums=<dtype>", [&](const SpecOption& option) -> const char* {
    if (option.word == "affine") return spec.affine = true, "affine";
    if (option.word == "zero_centred") return spec.zero_centred = true, "zero_centred";
    if (!option.has_value()) return nullptr;
    if (option.key == "sums") return spec.sums = reader.dtype(option.value), "sums";
    return nullptr;
  });
}

void list_valid(std::vector<NormSpec>& specs) {
  for (const NormKind kind : {NormKind::layer, NormKind::rms}) {
    for (const Dtype in : kHighPrecisionDtypes) {
      list_norms({.kind = kind, .in = in}, specs);
      for (const Dtype out : kFp8Dtypes) {
        list_norms({.kind = kind, .in = in, .out = out}, specs);
        list_norms({.kind = kind, .in = in, .out = out, .pow2 = true}, specs);
        list_norms({.kind = kind, .in = in, .out = out, .scale = kTensorwise, .source = ScaleSource::given}, specs);
      }
    }
  }
}

void list_valid(std::vector<NormBackwardSpec>& specs) {
  for (const NormKind kind : {NormKind::layer, NormKind::rms}) {
    for (const Dtype in : kHighPrecisionDtypes) {
      specs.push_back({.kind = kind, .in = in});
      for (const bool zero_centred : {false, true}) {
        specs.push_back({.kind = kind, .in = in, .affine = true, .zero_centred = zero_centred});
        if (in == Dtype::f32) continue;
        specs.push_back({.kind = kind, .in = in, .affine = true, .sums = in, .zero_centred = zero_centred});
      }
    }
  }
}

// ---- The instantiations of templates/norm. Specs that differ only in parameters of the kernel share one. ------------

namespace {

const char* type_text(NormKind kind) { return kind == NormKind::layer ? "ingot::LayerNorm" : "ingot::RmsNorm"; }

}  // namespace

ExtraPasses extra_passes(const NormSpec&) { return {}; }

TemplateInstance template_instance(const NormSpec& spec, Pass) {
  // pow2 is a parameter of the kernel, and so is whether statistics are written in addition to other outputs.
  NormSpec kernel = spec;
  kernel.pow2 = false;
  kernel.stats = !spec.out && !spec.result;
  const std::string config = aggregate_text(
      "NormRowsConfig", {field("affine", spec.affine), field("given_scale", spec.source == ScaleSource::given),
                         field("result", spec.result)});
  const std::string arguments = fmt::format("{}, {}, {}, {}", type_text(spec.in), type_text(spec.kind),
                                            spec.out ? type_text(*spec.out) : "ingot::NoCodes", config);
  if (spec.cols == 0) return {"norm/norm_rows.cuh", fmt::format("norm_rows<{}>", arguments), print_spec(kernel)};
  if (names_norm_rows_full(spec.cols)) {
    return {"norm/norm_rows_full.cuh", fmt::format("norm_rows_full<{}, {}>", arguments, spec.cols), print_spec(kernel)};
  }
  return {"norm/norm_rows_wide.cuh",
          fmt::format("norm_rows_wide<{}, {}>", arguments, NormRowsWideLaunch::vec8s(spec.cols)), print_spec(kernel)};
}

ExtraPasses extra_passes(const NormBackwardSpec& spec) { return {.finish = spec.affine, .wide = true}; }

TemplateInstance template_instance(const NormBackwardSpec& spec, Pass pass) {
  if (pass == Pass::finish) return column_sum_finish(spec.sums);
  NormBackwardSpec kernel = spec;
  kernel.sums = Dtype::f32;  // the finishing pass rounds
  // Kernels of plain gammas keep the text, and so the stored machine code, that they had before there were others.
  const std::string config =
      spec.zero_centred
          ? aggregate_text("NormBackwardConfig", {field("affine", spec.affine), field("zero_centred", true)})
          : aggregate_text("NormBackwardConfig", {field("affine", spec.affine)});
  // The kernel's name is also that of its header.
  const auto [name, words] =
      pass == Pass::wide ? std::pair{"norm_backward_wide", " (wide rows)"} : std::pair{"norm_backward", ""};
  return {fmt::format("norm/{}.cuh", name),
          fmt::format("{}<{}, {}, {}>", name, type_text(spec.in), type_text(spec.kind), config),
          print_spec(kernel) + words};
}

}  // namespace ingot
