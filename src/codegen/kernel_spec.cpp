#include "ingot/codegen/kernel_spec.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <optional>
#include <ostream>
#include <span>
#include <system_error>
#include <utility>

#include "ingot/codegen/dequant/dequant_spec_text.h"
#include "ingot/codegen/gemm/gemm_sm90.h"
#include "ingot/codegen/norm/norm_spec_text.h"
#include "ingot/codegen/quantize/quantize_spec_text.h"
#include "ingot/codegen/types/spec_words.h"
#include "ingot/runtime/error.h"

namespace ingot {
namespace {

// The BLAS letters: is A, is B stored transposed? A as [M, K] is not, B as [N, K] is.
std::string layout_letters(Layout a, Layout b) {
  return {a == Layout::k_major ? 'n' : 't', b == Layout::k_major ? 't' : 'n'};
}

// ---- print -------------------------------------------------------------------------------------------------------

std::string print_spec(const AmaxSpec& spec) {
  return fmt::format("amax {} scale={}", name(spec.in), print(spec.scale));
}

std::string print_outputs(const CastSpec& spec) {
  std::vector<std::string> outputs;
  if (spec.codes) outputs.emplace_back("codes");
  if (spec.transposed) outputs.emplace_back("transposed");
  if (spec.result) outputs.emplace_back("result");
  if (spec.sum) outputs.push_back(fmt::format("sum:{}", name(*spec.sum)));
  return outputs.empty() ? "nothing" : fmt::format("{}", fmt::join(outputs, ","));
}

// A word has no spaces; an expression does without.
std::string print_word(const Pointwise& expression) {
  std::string text = print(expression);
  std::erase(text, ' ');
  return text;
}

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
  if (spec.list) line += " list";
  return line;
}

std::string print_spec(const GemmSpec& spec) {
  std::string line = fmt::format("gemm {}*{}->{} {}", name(spec.a), name(spec.b), name(spec.out),
                                 layout_letters(spec.layout_a, spec.layout_b));
  // High-precision operands have no scale; one that is there by mistake is shown, because validate() quotes this line.
  if (is_fp8(spec.a) || is_fp8(spec.b) || spec.scale_a != kTensorwise || spec.scale_b != kTensorwise) {
    line += fmt::format(" scale={},{}", print(spec.scale_a), print(spec.scale_b));
  }
  if (spec.bias) line += " bias";
  const GemmEpilogue& epilogue = spec.epilogue;
  if (epilogue.c) line += fmt::format(" c={}", name(*epilogue.c));
  if (epilogue.pointwise) line += fmt::format(" epilogue={}", print_word(epilogue.pointwise));
  if (epilogue.preactivation || epilogue.amax) {
    line += fmt::format(" also={}{}{}", epilogue.preactivation ? "preactivation" : "",
                        epilogue.preactivation && epilogue.amax ? "," : "", epilogue.amax ? "amax" : "");
  }
  if (spec.fast_accumulation) line += " fast";
  if (spec.kernel != GemmKernel::automatic || spec.tiling || spec.algorithm != 0) {
    line += fmt::format(" kernel={}", name(spec.kernel));
  }
  if (spec.tiling) {
    line += fmt::format(":{}", spec.kernel == GemmKernel::mma ? print_mma_tiling(*spec.tiling) : print(*spec.tiling));
  }
  if (spec.algorithm != 0) line += fmt::format(":{}", spec.algorithm);
  if (spec.staged_a || spec.staged_b) {
    line += fmt::format(" staged={}", spec.staged_a ? spec.staged_b ? "a,b" : "a" : "b");
  }
  return line;
}

std::string print_spec(const ColumnSumSpec& spec) {
  return fmt::format("column_sum {}->{}", name(spec.in), name(spec.out));
}

std::string print_spec(const ElementwiseSpec& spec) {
  return fmt::format("elementwise {}{}{}{}", name(spec.in), spec.pointwise ? " of=" : "", print_word(spec.pointwise),
                     spec.fast_math ? " fast" : "");
}

std::string print_spec(const RelayoutSpec& spec) { return spec.transposed ? "relayout transposed" : "relayout copied"; }

const char* name_of(AmaxReduction reduction) {
  return reduction == AmaxReduction::max ? "max" : reduction == AmaxReduction::most_recent ? "most_recent" : "unknown";
}

std::string print_spec(const AmaxHistorySpec& spec) {
  return fmt::format("amax_history reduce={}", name_of(spec.reduction));
}

// Without codes there is no scale; one that is there by mistake is shown.
std::string print_spec(const CastStatsSpec& spec) {
  std::string line = fmt::format("cast_stats {}", name(spec.in));
  if (spec.out) line += fmt::format("->{}", name(*spec.out));
  if (spec.out || spec.scale != kTensorwise) line += fmt::format(" scale={}", print(spec.scale));
  if (spec.transposed) line += " transposed";
  return line;
}

// ---- validate ----------------------------------------------------------------------------------------------------

template <class Spec>
[[noreturn]] void refuse(const Spec& spec, const std::string& message) {
  throw Error(ErrorCode::invalid_spec, print_spec(spec), message);
}

template <class Spec>
void require_dtype(const Spec& spec, const char* field, Dtype dtype, std::span<const Dtype> allowed) {
  if (const std::string fault = dtype_fault(field, dtype, allowed); !fault.empty()) refuse(spec, fault);
}

template <class Spec>
void require_scale(const Spec& spec, const char* field, ScaleGranularity scale) {
  if (scale != kTensorwise && scale != kRowwise) {
    refuse(spec, fmt::format("{} is {}, but must be tensor or row, or 1x128,128x128 or 1x128,1x128 for both", field,
                             print(scale)));
  }
}

template <class Spec>
void require_layout(const Spec& spec, const char* field, Layout layout) {
  if (layout != Layout::k_major && layout != Layout::mn_major) {
    refuse(spec, fmt::format("{} is {}, which is no layout; it must be k_major or mn_major", field,
                             static_cast<unsigned>(layout)));
  }
}

template <class Spec>
void require_cast_scale(const Spec& spec, const char* field, ScaleGranularity scale) {
  if (std::ranges::find(kCastGranularities, scale) == kCastGranularities.end()) {
    refuse(spec, fmt::format("{} is {}, but must be tensor, row, col, 1x128, 128x1 or 128x128", field, print(scale)));
  }
}

void validate_spec(const AmaxSpec& spec) {
  require_dtype(spec, "in", spec.in, kHighPrecisionDtypes);
  if (spec.scale != kTensorwise && spec.scale != kRowwise && spec.scale != kColumnwise) {
    refuse(spec, fmt::format("scale is {}, but must be tensor, row or col", print(spec.scale)));
  }
}

void validate_spec(const CastSpec& spec) {
  require_dtype(spec, "in", spec.in, kHighPrecisionDtypes);
  require_dtype(spec, "out", spec.out, kFp8Dtypes);
  require_cast_scale(spec, "scale", spec.scale);
  if (!spec.codes && !spec.transposed) {
    refuse(spec, "neither codes nor transposed is set, but a cast must write at least one of them");
  }
  if (!spec.pointwise) {
    constexpr const char* kNoExpression = "{} is set, but there is no pointwise expression: {}";
    if (spec.result) refuse(spec, fmt::format(kNoExpression, "result", "the values are the input's own elements"));
    if (spec.unrounded) refuse(spec, fmt::format(kNoExpression, "unrounded", "nothing is rounded before the cast"));
    if (spec.fast_math) refuse(spec, fmt::format(kNoExpression, "fast_math", "a cast alone has one result"));
  }
  if (spec.sum) require_dtype(spec, "sum", *spec.sum, kHighPrecisionDtypes);
  if (spec.sum && spec.list) refuse(spec, "sum is set, but a list of casts has no column sums: cast that matrix alone");
  if (spec.transposed_scale) {
    require_cast_scale(spec, "transposed_scale", *spec.transposed_scale);
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
  if (spec.source != ScaleSource::dynamic && spec.source != ScaleSource::given) {
    refuse(spec,
           fmt::format("source is {}, which is none; it must be dynamic or given", static_cast<unsigned>(spec.source)));
  }
  if (spec.source == ScaleSource::given && spec.pow2) {
    refuse(spec, "pow2 is set, but the scales are given: round them where they are made");
  }
}

void validate_fp8_gemm(const GemmSpec& spec) {
  require_dtype(spec, "a", spec.a, kFp8Dtypes);
  require_dtype(spec, "b", spec.b, kFp8Dtypes);
  if (!among(kHighPrecisionDtypes, spec.out) && !among(kFp8Dtypes, spec.out)) {
    refuse(spec, fmt::format("out is {}, but must be one of {}, {}", name(spec.out), list(kHighPrecisionDtypes),
                             list(kFp8Dtypes)));
  }
  if (!has_group_factors(spec)) {
    require_scale(spec, "scale_a", spec.scale_a);
    require_scale(spec, "scale_b", spec.scale_b);
    return;
  }
  if (spec.scale_a != kRowGroups || (spec.scale_b != kBlocks && spec.scale_b != kRowGroups)) {
    refuse(spec, fmt::format("scale is {},{}, but factors of groups of K are 1x128,128x128 or 1x128,1x128",
                             print(spec.scale_a), print(spec.scale_b)));
  }
  if (spec.fast_accumulation) {
    refuse(spec, "fast_accumulation is set, but each 128 of K has its own factors here and is summed apart");
  }
}

void validate_high_precision_gemm(const GemmSpec& spec) {
  require_dtype(spec, "a", spec.a, kHighPrecisionDtypes);
  require_dtype(spec, "b", spec.b, kHighPrecisionDtypes);
  if (spec.a != spec.b) {
    refuse(spec, fmt::format("b is {}, but must be {} as a is: high-precision operands are of one dtype", name(spec.b),
                             name(spec.a)));
  }
  if (spec.out != spec.a && spec.out != Dtype::f32) {
    refuse(spec, fmt::format("out is {}, but must be {}{}", name(spec.out), name(spec.a),
                             spec.a == Dtype::f32 ? ", as the operands are" : " (as the operands are) or f32"));
  }
  for (const auto& [field, scale] : {std::pair{"scale_a", spec.scale_a}, std::pair{"scale_b", spec.scale_b}}) {
    if (scale != kTensorwise) {
      refuse(spec,
             fmt::format("{} is {}, but must be tensor: a high-precision operand has no factors", field, print(scale)));
    }
  }
  if (spec.fast_accumulation) {
    refuse(spec, "fast_accumulation is set, but is for FP8 operands only: high-precision ones always sum in f32");
  }
}

// bf16 or f16 beside FP8.
void validate_mixed_gemm(const GemmSpec& spec) {
  const bool a_is_fp8 = is_fp8(spec.a);
  const Dtype high = a_is_fp8 ? spec.b : spec.a;
  if (high == Dtype::f32) {
    refuse(spec, fmt::format("{} is f32 and {} is {}, but beside FP8 an operand must be FP8, bf16 or f16",
                             a_is_fp8 ? "b" : "a", a_is_fp8 ? "a" : "b", name(a_is_fp8 ? spec.a : spec.b)));
  }
  if (spec.out != high && spec.out != Dtype::f32) {
    refuse(spec, fmt::format("out is {}, but must be {} (as the high-precision operand is) or f32", name(spec.out),
                             name(high)));
  }
  if ((a_is_fp8 ? spec.scale_b : spec.scale_a) != kTensorwise) {
    refuse(spec, fmt::format("{} is {}, but must be tensor: a high-precision operand has no factors",
                             a_is_fp8 ? "scale_b" : "scale_a", print(a_is_fp8 ? spec.scale_b : spec.scale_a)));
  }
  require_scale(spec, a_is_fp8 ? "scale_a" : "scale_b", a_is_fp8 ? spec.scale_a : spec.scale_b);
  if (spec.fast_accumulation) {
    refuse(spec, "fast_accumulation is set, but is for two FP8 operands only: others always sum in f32");
  }
}

void validate_mma(const GemmSpec& spec) {
  if (spec.a == Dtype::f32) {
    refuse(spec, "a is f32, but kernel mma multiplies FP8, bf16 and f16 only: leave kernel out");
  }
  if (spec.tiling && std::ranges::find(kMmaTilings, *spec.tiling) == kMmaTilings.end()) {
    refuse(spec, fmt::format("tiling is {}, but kernel mma has 128x128 and 64x64 only", print(*spec.tiling)));
  }
}

void validate_kernel(const GemmSpec& spec) {
  if (spec.kernel > GemmKernel::simt) {
    refuse(spec, fmt::format("kernel is {}, which is none; it must be automatic, cublaslt, sm90, mma or simt",
                             static_cast<unsigned>(spec.kernel)));
  }
  if (spec.tiling && spec.kernel != GemmKernel::sm90 && spec.kernel != GemmKernel::mma) {
    refuse(spec, fmt::format("tiling is {}, but kernel is {}: sm90 and mma alone have one", print(*spec.tiling),
                             name(spec.kernel)));
  }
  if (spec.algorithm != 0 && spec.kernel != GemmKernel::cublaslt) {
    refuse(spec, fmt::format("algorithm is {}, but kernel is {}: cublaslt alone has algorithms", spec.algorithm,
                             name(spec.kernel)));
  }
  if (spec.algorithm < 0 || spec.algorithm >= kCublasltAlgorithms) {
    refuse(spec, fmt::format("algorithm is {}, but must be 0 to {}", spec.algorithm, kCublasltAlgorithms - 1));
  }
  if ((spec.staged_a || spec.staged_b) && spec.kernel != GemmKernel::sm90) {
    refuse(spec, fmt::format("staged is set, but kernel is {}: sm90 alone has staged operands", name(spec.kernel)));
  }
  if (spec.kernel == GemmKernel::mma) return validate_mma(spec);
  if (spec.kernel != GemmKernel::sm90) return;
  for (const auto& [field, dtype] : {std::pair{"a", spec.a}, std::pair{"b", spec.b}}) {
    if (!is_ocp(dtype)) {
      refuse(spec, fmt::format("{} is {}, but kernel sm90 multiplies e4m3fn and e5m2 only: leave kernel out", field,
                               name(dtype)));
    }
  }
  if (!spec.tiling) return;
  if (const std::string fault = tiling_fault(*spec.tiling, spec.fast_accumulation); !fault.empty()) {
    refuse(spec, fmt::format("tiling has {}", fault));
  }
  if (!has_group_factors(spec)) return;
  if (sm90_columns(sm90_tiling(*spec.tiling)) > 128) {
    refuse(spec, fmt::format("tiling has a tile of {} columns, but with factors of groups it must be 64 or 128",
                             spec.tiling->n));
  }
  // Two sets of sums, the steps' factors and the place along K take more registers than there are.
  if (spec.tiling->stream_k && spec.tiling->m > 128) {
    refuse(spec,
           fmt::format("tiling has a tile of {} rows in stream-K, but with factors of groups it must be 64 or 128",
                       spec.tiling->m));
  }
}

void validate_epilogue(const GemmSpec& spec) {
  const GemmEpilogue& epilogue = spec.epilogue;
  if (epilogue.c) require_dtype(spec, "c", *epilogue.c, kHighPrecisionDtypes);
  if (epilogue.preactivation && !epilogue.pointwise) {
    refuse(spec, "preactivation is set, but there is no pointwise expression: the output is what it would be");
  }
  for (const PointwiseInput& input : epilogue.pointwise.inputs()) {
    if (input.kind != PointwiseInput::Kind::column_f32) continue;
    refuse(spec, fmt::format("epilogue reads {0}[col:f32], but a GEMM's vectors along the columns are of {1}: write "
                             "{0}[col], or make it a factor of b",
                             input.name, name(epilogue_dtype(spec))));
  }
}

void validate_spec(const GemmSpec& spec) {
  require_layout(spec, "layout_a", spec.layout_a);
  require_layout(spec, "layout_b", spec.layout_b);
  const bool a_high = among(kHighPrecisionDtypes, spec.a);
  const bool b_high = among(kHighPrecisionDtypes, spec.b);
  if (a_high != b_high && among(kFp8Dtypes, spec.a) != among(kFp8Dtypes, spec.b)) {
    validate_mixed_gemm(spec);
  } else if (a_high) {
    validate_high_precision_gemm(spec);
  } else {
    validate_fp8_gemm(spec);
  }
  validate_epilogue(spec);
  validate_kernel(spec);
}

void validate_spec(const RelayoutSpec&) {}

void validate_spec(const ElementwiseSpec& spec) {
  require_dtype(spec, "in", spec.in, kHighPrecisionDtypes);
  if (!spec.pointwise) {
    refuse(spec, "there is no pointwise expression, but it is all that this kernel computes: of=silu(x)*gate");
  }
}

void validate_spec(const CastStatsSpec& spec) {
  require_dtype(spec, "in", spec.in, kHighPrecisionDtypes);
  if (spec.out) {
    require_dtype(spec, "out", *spec.out, kFp8Dtypes);
    return require_cast_scale(spec, "scale", spec.scale);
  }
  if (spec.scale != kTensorwise || spec.transposed) {
    refuse(spec, fmt::format("{} is set, but there are no codes: set out", spec.transposed ? "transposed" : "scale"));
  }
}

void validate_spec(const ColumnSumSpec& spec) {
  require_dtype(spec, "in", spec.in, kHighPrecisionDtypes);
  require_dtype(spec, "out", spec.out, kHighPrecisionDtypes);
}

void validate_spec(const AmaxHistorySpec& spec) {
  if (spec.reduction != AmaxReduction::max && spec.reduction != AmaxReduction::most_recent) {
    refuse(spec, fmt::format("reduction is {}, which is none; it must be max or most_recent",
                             static_cast<unsigned>(spec.reduction)));
  }
}

// ---- parse -------------------------------------------------------------------------------------------------------

constexpr std::string_view kSpaces = " \t\r\n\v\f";

bool is_space(char c) { return kSpaces.find(c) != std::string_view::npos; }

// Words between spaces; spaces beside "->", "*", "=" and "," do not divide, so that "bf16 -> e4m3fn" is one word, nor
// do those between quotation marks, which themselves are dropped: of="x + bias[col]".
std::vector<std::string> split_words(std::string_view line) {
  std::vector<std::string> words;
  bool open = false;  // does the next character continue the last word?
  bool quoted = false;
  for (std::size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (c == '"' && !words.empty()) {
      quoted = !quoted;
      open = true;
      continue;
    }
    if (quoted) {
      words.back().push_back(c);
      continue;
    }
    if (is_space(c)) {
      open = open && std::string_view(">*=,").find(words.back().back()) != std::string_view::npos;
      continue;
    }
    const bool joins = words.size() > 1 && (line.substr(i).starts_with("->") || c == '*' || c == '=' || c == ',');
    if (!open && !joins) words.emplace_back();
    words.back().push_back(c);
    open = true;
  }
  return words;
}

// The words of one line, and the errors that quote them.
class Parser {
 public:
  explicit Parser(std::string_view line) : line_(line), words_(split_words(line)) {}

  KernelSpec parse() {
    if (words_.empty()) fail("the line is empty; expected a kernel such as \"cast bf16->e4m3fn scale=row out=codes\"");
    if (std::ranges::count(line_, '"') % 2 != 0) fail("a quotation mark is opened and not closed");
    const std::string& kind = words_[0];
    if (kind == "amax") return parse_as<AmaxSpec>();
    if (kind == "cast") return parse_as<CastSpec>();
    if (kind == "gemm") return parse_as<GemmSpec>();
    if (kind == "column_sum") return parse_as<ColumnSumSpec>();
    if (kind == "relayout") return parse_as<RelayoutSpec>();
    if (kind == "elementwise") return parse_as<ElementwiseSpec>();
    if (kind == "cast_stats") return parse_as<CastStatsSpec>();
    if (kind == "norm") return parse_norm(line_, words_);
    if (kind == "norm_backward") return parse_norm_backward(line_, words_);
    if (kind == "amax_history") return parse_as<AmaxHistorySpec>();
    if (kind == "quantize_mx") return parse_mx_quantize(line_, words_);
    if (kind == "float_quantize") return parse_float_quantize(line_, words_);
    if (kind == "pack_weight") return parse_pack_weight(line_, words_);
    if (kind == "dequant_matmul") return parse_dequant_matmul(line_, words_);
    fail(fmt::format(
        "\"{}\" is no kernel; expected amax, cast, gemm, column_sum, relayout, elementwise, cast_stats, norm, "
        "norm_backward, amax_history, quantize_mx, float_quantize, pack_weight or dequant_matmul",
        kind));
  }

 private:
  [[noreturn]] void fail(const std::string& message) const {
    throw Error(ErrorCode::invalid_spec, std::string(line_), message);
  }

  template <class Spec>
  Spec parse_as() {
    Spec spec;
    if (words_.size() < 2) fail(fmt::format("\"{}\" must be followed by {}", words_[0], dtypes_form(spec)));
    dtypes(spec, words_[1]);
    std::vector<std::string> seen;
    for (const std::string& word : std::span(words_).subspan(2)) {
      const auto equals = word.find('=');
      const auto key = std::string_view(word).substr(0, equals);
      const auto value = equals == std::string::npos ? std::string_view() : std::string_view(word).substr(equals + 1);
      const std::string field = option(spec, word, key, value, equals != std::string::npos);
      if (field.empty()) fail(fmt::format("\"{}\" is no word of {}; expected {}", word, words_[0], options_form(spec)));
      if (std::ranges::find(seen, field) != seen.end()) fail(fmt::format("\"{}\" gives {} a second time", word, field));
      seen.push_back(field);
    }
    return spec;
  }

  static std::string dtypes_form(const AmaxSpec&) { return "the input's dtype, such as bf16"; }
  static std::string dtypes_form(const CastSpec&) { return "<in>-><out>, such as bf16->e4m3fn"; }
  static std::string dtypes_form(const GemmSpec&) { return "<a>*<b>-><out>, such as e4m3fn*e5m2->bf16"; }
  static std::string dtypes_form(const ColumnSumSpec&) { return "<in>-><out>, such as bf16->f32"; }
  static std::string dtypes_form(const RelayoutSpec&) { return "copied or transposed"; }
  static std::string dtypes_form(const AmaxHistorySpec&) { return "reduce=max or reduce=most_recent"; }
  static std::string dtypes_form(const ElementwiseSpec&) { return "the dtype of its values, such as bf16"; }
  static std::string dtypes_form(const CastStatsSpec&) { return "<in> or <in>-><out>, such as bf16->e4m3fn"; }

  static std::string options_form(const AmaxSpec&) { return "scale=<granularity>"; }
  static std::string options_form(const CastSpec&) {
    return "of=<expression>, scale=<granularity>, out=codes,transposed,result,sum:<dtype>, given, pow2, unrounded, "
           "fast or list";
  }
  static std::string options_form(const GemmSpec&) {
    return "nt, nn, tt, tn, scale=<granularity>,<granularity>, bias, c=<dtype>, epilogue=<expression>, "
           "also=preactivation,amax, fast, kernel=<kernel> or staged=a,b";
  }
  static std::string options_form(const ColumnSumSpec&) { return "nothing after the dtypes"; }
  static std::string options_form(const RelayoutSpec&) { return "nothing more"; }
  static std::string options_form(const AmaxHistorySpec&) { return "nothing more"; }
  static std::string options_form(const ElementwiseSpec&) { return "of=<expression> or fast"; }
  static std::string options_form(const CastStatsSpec&) { return "scale=<granularity> or transposed"; }

  void dtypes(AmaxSpec& spec, std::string_view word) const { spec.in = dtype(word, word); }
  void dtypes(CastSpec& spec, std::string_view word) const {
    const auto [in, out] = halves(word, "->", dtypes_form(spec));
    spec.in = dtype(in, word);
    spec.out = dtype(out, word);
  }
  void dtypes(GemmSpec& spec, std::string_view word) const {
    const auto [operands, out] = halves(word, "->", dtypes_form(spec));
    const auto [a, b] = halves(operands, "*", dtypes_form(spec), word);
    spec.a = dtype(a, word);
    spec.b = dtype(b, word);
    spec.out = dtype(out, word);
  }
  void dtypes(ColumnSumSpec& spec, std::string_view word) const {
    const auto [in, out] = halves(word, "->", dtypes_form(spec));
    spec.in = dtype(in, word);
    spec.out = dtype(out, word);
  }

  void dtypes(RelayoutSpec& spec, std::string_view word) const {
    if (word != "copied" && word != "transposed") fail(fmt::format("\"{}\" must be {}", word, dtypes_form(spec)));
    spec.transposed = word == "transposed";
  }
  void dtypes(ElementwiseSpec& spec, std::string_view word) const { spec.in = dtype(word, word); }

  void dtypes(AmaxHistorySpec& spec, std::string_view word) const {
    for (const AmaxReduction reduction : kAmaxReductions) {
      spec.reduction = reduction;
      if (word == fmt::format("reduce={}", name_of(reduction))) return;
    }
    fail(fmt::format("\"{}\" must be {}", word, dtypes_form(spec)));
  }

  void dtypes(CastStatsSpec& spec, std::string_view word) const {
    const auto arrow = word.find("->");
    spec.in = dtype(word.substr(0, arrow), word);
    if (arrow != std::string_view::npos) spec.out = dtype(word.substr(arrow + 2), word);
  }

  // Each sets what the word gives and returns that field's name; empty where the spec has no such word.
  std::string option(AmaxSpec& spec, std::string_view word, std::string_view key, std::string_view value, bool) const {
    if (key != "scale") return {};
    spec.scale = granularity(value, word);
    return "scale";
  }
  std::string option(CastSpec& spec, std::string_view word, std::string_view key, std::string_view value,
                     bool has_value) const {
    if (key == "scale") {
      const auto plus = value.find('+');
      spec.scale = granularity(value.substr(0, plus), word);
      if (plus != std::string_view::npos) spec.transposed_scale = granularity(value.substr(plus + 1), word);
      return "scale";
    }
    if (key == "of") {
      spec.pointwise = parse_pointwise(value);
      return "the expression";
    }
    if (key == "out") {
      outputs(spec, value, word);
      return "out";
    }
    if (key == "unrounded" && !has_value) {
      spec.unrounded = true;
      return "unrounded";
    }
    if (key == "fast" && !has_value) {
      spec.fast_math = true;
      return "fast";
    }
    if (key == "list" && !has_value) {
      spec.list = true;
      return "list";
    }
    if (key == "given" && !has_value) {
      spec.source = ScaleSource::given;
      return "given";
    }
    if (key == "pow2" && !has_value) {
      spec.pow2 = true;
      return "pow2";
    }
    return {};
  }
  std::string option(GemmSpec& spec, std::string_view word, std::string_view key, std::string_view value,
                     bool has_value) const {
    if (key == "scale") {
      const auto [a, b] = halves(value, ",", "two granularities, one for each operand, such as scale=tensor,row", word);
      spec.scale_a = granularity(a, word);
      spec.scale_b = granularity(b, word);
      return "scale";
    }
    if (key == "c") {
      spec.epilogue.c = dtype(value, word);
      return "c";
    }
    if (key == "epilogue") {
      spec.epilogue.pointwise = parse_pointwise(value);
      return "the expression";
    }
    if (key == "also") {
      also(spec.epilogue, value, word);
      return "also";
    }
    if (key == "kernel") {
      const auto colon = value.find(':');
      spec.kernel = gemm_kernel(value.substr(0, colon), word);
      if (colon == std::string_view::npos) return "kernel";
      if (spec.kernel == GemmKernel::cublaslt) {
        spec.algorithm = algorithm(value.substr(colon + 1), word);
      } else {
        spec.tiling = gemm_tiling(spec.kernel, value.substr(colon + 1), word);
      }
      return "kernel";
    }
    if (key == "staged") {
      if (value != "a" && value != "b" && value != "a,b") {
        fail(fmt::format("\"{}\" in \"{}\" names no operand; expected a, b or a,b", value, word));
      }
      spec.staged_a = value != "b";
      spec.staged_b = value != "a";
      return "staged";
    }
    if (has_value) return {};
    if (word == "nt" || word == "nn" || word == "tt" || word == "tn") {
      spec.layout_a = word[0] == 'n' ? Layout::k_major : Layout::mn_major;
      spec.layout_b = word[1] == 't' ? Layout::k_major : Layout::mn_major;
      return "the layouts";
    }
    if (word == "bias") {
      spec.bias = true;
      return "bias";
    }
    if (word == "fast") {
      spec.fast_accumulation = true;
      return "fast";
    }
    return {};
  }
  std::string option(ColumnSumSpec&, std::string_view, std::string_view, std::string_view, bool) const { return {}; }
  std::string option(RelayoutSpec&, std::string_view, std::string_view, std::string_view, bool) const { return {}; }
  std::string option(AmaxHistorySpec&, std::string_view, std::string_view, std::string_view, bool) const { return {}; }
  std::string option(ElementwiseSpec& spec, std::string_view, std::string_view key, std::string_view value,
                     bool has_value) const {
    if (key == "of") {
      spec.pointwise = parse_pointwise(value);
      return "the expression";
    }
    if (key != "fast" || has_value) return {};
    spec.fast_math = true;
    return "fast";
  }

  std::string option(CastStatsSpec& spec, std::string_view word, std::string_view key, std::string_view value,
                     bool has_value) const {
    if (key == "transposed" && !has_value) {
      spec.transposed = true;
      return "transposed";
    }
    if (key != "scale") return {};
    spec.scale = granularity(value, word);
    return "scale";
  }

  void outputs(CastSpec& spec, std::string_view value, std::string_view word) const {
    spec.codes = false;
    while (true) {
      const std::string_view output = value.substr(0, value.find(','));
      const auto set = [&](bool& flag) {
        if (flag) fail(fmt::format("\"{}\" asks for {} a second time", word, output));
        flag = true;
      };
      if (output == "codes") {
        set(spec.codes);
      } else if (output == "transposed") {
        set(spec.transposed);
      } else if (output == "result") {
        set(spec.result);
      } else if (output.starts_with("sum:")) {
        if (spec.sum) fail(fmt::format("\"{}\" asks for sum a second time", word));
        spec.sum = dtype(output.substr(4), word);
      } else {
        fail(fmt::format("\"{}\" in \"{}\" is not an output; expected codes, transposed, result or sum:<dtype>", output,
                         word));
      }
      if (output.size() == value.size()) return;
      value.remove_prefix(output.size() + 1);
    }
  }

  void also(GemmEpilogue& epilogue, std::string_view value, std::string_view word) const {
    while (true) {
      const std::string_view output = value.substr(0, value.find(','));
      if (output != "preactivation" && output != "amax") {
        fail(fmt::format("\"{}\" in \"{}\" is not an output; expected preactivation or amax", output, word));
      }
      bool& flag = output == "amax" ? epilogue.amax : epilogue.preactivation;
      if (flag) fail(fmt::format("\"{}\" asks for {} a second time", word, output));
      flag = true;
      if (output.size() == value.size()) return;
      value.remove_prefix(output.size() + 1);
    }
  }

  std::pair<std::string_view, std::string_view> halves(std::string_view text, std::string_view divider,
                                                       std::string_view form, std::string_view word = {}) const {
    const auto at = text.find(divider);
    if (at == std::string_view::npos) fail(fmt::format("\"{}\" must be {}", word.empty() ? text : word, form));
    return {text.substr(0, at), text.substr(at + divider.size())};
  }

  Dtype dtype(std::string_view text, std::string_view word) const {
    if (const auto dtype = parse_dtype(text)) return *dtype;
    fail(fmt::format("\"{}\"{} is no dtype; expected {}, {}", text, in_word(text, word), list(kHighPrecisionDtypes),
                     list(kFp8Dtypes)));
  }

  ScaleGranularity granularity(std::string_view text, std::string_view word) const {
    if (const auto granularity = parse_granularity(text)) return *granularity;
    fail(fmt::format("\"{}\"{} is no granularity; expected tensor, row, col or <rows>x<cols>", text,
                     in_word(text, word)));
  }

  GemmKernel gemm_kernel(std::string_view text, std::string_view word) const {
    if (const auto kernel = parse_gemm_kernel(text)) return *kernel;
    fail(fmt::format("\"{}\"{} is no kernel; expected automatic, cublaslt, sm90, mma or simt", text,
                     in_word(text, word)));
  }

  GemmTiling gemm_tiling(GemmKernel kernel, std::string_view text, std::string_view word) const {
    if (kernel == GemmKernel::mma) {
      if (const auto tiling = parse_mma_tiling(text)) return *tiling;
      fail(fmt::format("\"{}\"{} is no tiling of mma; expected 128x128 or 64x64", text, in_word(text, word)));
    }
    if (const auto tiling = parse_gemm_tiling(text)) return *tiling;
    fail(
        fmt::format("\"{}\"{} is no tiling; expected one such as 128x256:2x1:4:cooperative or "
                    "64x128:1x1:8:pingpong (tile, cluster, stages, schedule), or with \":streamk\" behind it",
                    text, in_word(text, word)));
  }

  int algorithm(std::string_view text, std::string_view word) const {
    int value = 0;
    const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error == std::errc{} && stop == text.data() + text.size()) return value;
    fail(fmt::format("\"{}\"{} is no algorithm of cuBLASLt; expected a number from 0 to {}", text, in_word(text, word),
                     kCublasltAlgorithms - 1));
  }

  static std::string in_word(std::string_view text, std::string_view word) {
    return text == word ? std::string() : fmt::format(" in \"{}\"", word);
  }

  std::string_view line_;
  std::vector<std::string> words_;
};

// ---- hash --------------------------------------------------------------------------------------------------------

constexpr std::uint64_t bits(ScaleGranularity scale) {
  return (std::uint64_t{static_cast<std::uint32_t>(scale.rows)} << 32) | static_cast<std::uint32_t>(scale.cols);
}

// One byte per small field, lowest first.
template <class... Fields>
constexpr std::uint64_t pack(Fields... fields) {
  static_assert(sizeof...(fields) <= 8);
  std::uint64_t word = 0;
  int shift = 0;
  ((word |= std::uint64_t{static_cast<std::uint8_t>(fields)} << shift, shift += 8), ...);
  return word;
}

// The finaliser of SplitMix64: every input bit reaches every output bit.
constexpr std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
  return x ^ (x >> 31);
}

std::uint64_t hash_spec(const AmaxSpec& spec) { return mix(pack(1, spec.in) + mix(bits(spec.scale))); }
std::uint64_t hash_spec(const CastSpec& spec) {
  const std::uint64_t scale = mix(bits(spec.scale));
  const int flags = (spec.unrounded ? 1 : 0) | (spec.fast_math ? 2 : 0) | (spec.result ? 4 : 0) | (spec.pow2 ? 8 : 0) |
                    (spec.source == ScaleSource::given ? 16 : 0) | (spec.list ? 32 : 0);
  const int sum = spec.sum ? 1 + static_cast<int>(*spec.sum) : 0;
  return mix(pack(2, spec.in, spec.out, spec.codes, spec.transposed, flags, sum) + mix(spec.pointwise.hash()) +
             (spec.transposed_scale ? mix(bits(*spec.transposed_scale) + 31 * scale + 0x9e3779b97f4a7c15U) : scale));
}
std::uint64_t hash_spec(const GemmSpec& spec) {
  const GemmEpilogue& epilogue = spec.epilogue;
  const auto flags = (spec.bias ? 1 : 0) | (spec.fast_accumulation ? 2 : 0) | (epilogue.preactivation ? 4 : 0) |
                     (epilogue.amax ? 8 : 0) | (spec.staged_a ? 16 : 0) | (spec.staged_b ? 32 : 0);
  const int c = epilogue.c ? 1 + static_cast<int>(*epilogue.c) : 0;
  const GemmTiling t = spec.tiling.value_or(GemmTiling{.m = 0});
  return mix(
      pack(3, spec.a, spec.b, spec.out, spec.layout_a, spec.layout_b, flags, spec.kernel) +
      (epilogue.pointwise ? mix(epilogue.pointwise.hash()) : 0) + mix(pack(spec.algorithm, c)) +
      mix(bits(spec.scale_a) + mix(bits(spec.scale_b) + pack(t.m / 2, t.n / 2, t.cluster_m, t.cluster_n, t.stages,
                                                             t.pingpong, spec.tiling.has_value(), t.stream_k))));
}
std::uint64_t hash_spec(const ColumnSumSpec& spec) { return mix(pack(4, spec.in, spec.out)); }
std::uint64_t hash_spec(const RelayoutSpec& spec) { return mix(pack(7, spec.transposed)); }
std::uint64_t hash_spec(const ElementwiseSpec& spec) {
  return mix(pack(8, spec.in, spec.fast_math) + mix(spec.pointwise.hash()));
}

std::uint64_t hash_spec(const CastStatsSpec& spec) {
  const auto out = spec.out ? 1 + static_cast<int>(*spec.out) : 0;
  return mix(pack(10, spec.in, out, spec.transposed) + mix(bits(spec.scale)));
}
std::uint64_t hash_spec(const NormSpec& spec) {
  const auto flags = (spec.affine ? 1 : 0) | (spec.result ? 2 : 0) | (spec.stats ? 4 : 0) | (spec.pow2 ? 8 : 0);
  const auto out = spec.out ? 1 + static_cast<int>(*spec.out) : 0;
  return mix(pack(5, spec.kind, spec.in, out, flags, spec.source) + mix(bits(spec.scale)));
}
std::uint64_t hash_spec(const NormBackwardSpec& spec) {
  return mix(pack(6, spec.kind, spec.in, spec.sums, spec.affine));
}
std::uint64_t hash_spec(const AmaxHistorySpec& spec) { return mix(pack(9, spec.reduction)); }
std::uint64_t hash_spec(const MxQuantizeSpec& spec) { return mix(pack(11, spec.in, spec.out)); }
std::uint64_t hash_spec(const FloatQuantizeSpec& spec) {
  return mix(pack(12, spec.in, spec.exponent_bits, spec.mantissa_bits));
}
std::uint64_t hash_spec(const PackWeightSpec& spec) { return mix(pack(13, spec.weight, spec.layout, spec.unpack)); }
std::uint64_t hash_spec(const DequantMatmulSpec& spec) {
  const auto flags = (spec.bias ? 1 : 0) | (spec.batch_invariant ? 2 : 0) | (spec.tiling ? 4 : 0);
  const DequantTiling t = spec.tiling.value_or(DequantTiling{});
  return mix(
      pack(14, spec.x, spec.weight, spec.out, spec.factors, spec.layout, flags, spec.kernel) +
      (spec.pointwise ? mix(spec.pointwise.hash()) : 0) +
      mix(bits(spec.scale) + mix(pack(t.wgmma, t.tokens / 8, t.rows / 16, t.depth / 32, t.stages, t.split, t.k_warps) +
                                 mix(pack(t.waves, t.multicast, t.blocks, t.stream_k)))));
}

// ---- all ---------------------------------------------------------------------------------------------------------

// The casts between these dtypes: each pair of granularities, with scales of each source.
void append_casts(const CastSpec& dtypes, std::vector<KernelSpec>& specs) {
  const auto append = [&](CastSpec spec) {
    spec.in = dtypes.in;
    spec.out = dtypes.out;
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

std::size_t hash_value(const GemmSpec& spec) { return static_cast<std::size_t>(hash_spec(spec)); }

std::size_t hash_value(const DequantMatmulSpec& spec) { return static_cast<std::size_t>(hash_spec(spec)); }

std::size_t hash_value(const KernelSpec& spec) {
  return static_cast<std::size_t>(std::visit([](const auto& s) { return hash_spec(s); }, spec));
}

CastSpec cast_of_values(const ElementwiseSpec& spec) {
  return {.in = spec.in, .pointwise = spec.pointwise, .fast_math = spec.fast_math, .result = true};
}

bool has_group_factors(const GemmSpec& spec) {
  const auto grouped = [](ScaleGranularity scale) { return scale == kRowGroups || scale == kBlocks; };
  return grouped(spec.scale_a) || grouped(spec.scale_b);
}

Dtype bias_dtype(const GemmSpec& spec) {
  return is_fp8(spec.out) || (spec.out == Dtype::f32 && is_fp8(spec.a) && is_fp8(spec.b)) ? Dtype::bf16 : spec.out;
}

Dtype epilogue_dtype(const GemmSpec& spec) { return is_fp8(spec.out) ? Dtype::bf16 : spec.out; }

void validate(const KernelSpec& spec) {
  std::visit([](const auto& s) { validate_spec(s); }, spec);
}

std::string print(const KernelSpec& spec) {
  return std::visit([](const auto& s) { return print_spec(s); }, spec);
}

KernelSpec parse(std::string_view line) {
  KernelSpec spec = Parser(line).parse();
  validate(spec);
  return spec;
}

std::ostream& operator<<(std::ostream& stream, const KernelSpec& spec) { return stream << print(spec); }

std::vector<KernelSpec> all_valid_specs() {
  constexpr std::array kScales{kTensorwise, kRowwise};
  constexpr std::array kLayouts{Layout::k_major, Layout::mn_major};
  constexpr std::array kFlags{false, true};
  std::vector<KernelSpec> specs;

  for (const Dtype in : kHighPrecisionDtypes) {
    for (const auto scale : {kTensorwise, kRowwise, kColumnwise}) {
      specs.push_back(AmaxSpec{.in = in, .scale = scale});
    }
  }
  for (const Dtype in : kHighPrecisionDtypes) {
    for (const Dtype out : kFp8Dtypes) append_casts({.in = in, .out = out}, specs);
  }
  for (const Dtype a : kFp8Dtypes) {
    for (const Dtype b : kFp8Dtypes) {
      for (const Dtype out : kHighPrecisionDtypes) {
        for (const auto scale_b : {kBlocks, kRowGroups}) {
          for (const bool bias : kFlags) {
            specs.push_back(
                GemmSpec{.a = a, .b = b, .out = out, .scale_a = kRowGroups, .scale_b = scale_b, .bias = bias});
          }
        }
      }
    }
  }
  for (const Dtype a : kFp8Dtypes) {
    for (const Dtype b : kFp8Dtypes) {
      for (const Dtype out : kHighPrecisionDtypes) {
        for (const auto scale_a : kScales) {
          for (const auto scale_b : kScales) {
            for (const bool bias : kFlags) {
              for (const bool fast : kFlags) {
                specs.push_back(GemmSpec{.a = a,
                                         .b = b,
                                         .out = out,
                                         .scale_a = scale_a,
                                         .scale_b = scale_b,
                                         .bias = bias,
                                         .fast_accumulation = fast});
              }
            }
          }
        }
      }
    }
  }
  for (const Dtype in : kHighPrecisionDtypes) {
    for (const Dtype out : kHighPrecisionDtypes) {
      if (out != in && out != Dtype::f32) continue;
      for (const auto layout_a : kLayouts) {
        for (const auto layout_b : kLayouts) {
          for (const bool bias : kFlags) {
            specs.push_back(
                GemmSpec{.a = in, .b = in, .out = out, .layout_a = layout_a, .layout_b = layout_b, .bias = bias});
          }
        }
      }
    }
  }
  for (const Dtype high : {Dtype::bf16, Dtype::f16}) {
    for (const Dtype fp8 : kFp8Dtypes) {
      for (const auto scale : kScales) {
        for (const Dtype out : {high, Dtype::f32}) {
          specs.push_back(GemmSpec{.a = high, .b = fp8, .out = out, .scale_b = scale});
          specs.push_back(GemmSpec{.a = fp8, .b = high, .out = out, .scale_a = scale});
        }
      }
    }
  }
  for (const Dtype in : kHighPrecisionDtypes) {
    for (const Dtype out : kHighPrecisionDtypes) specs.push_back(ColumnSumSpec{.in = in, .out = out});
  }
  for (const bool transposed : kFlags) specs.push_back(RelayoutSpec{.transposed = transposed});
  for (const Dtype in : kHighPrecisionDtypes) {
    specs.push_back(CastStatsSpec{.in = in});
    for (const Dtype out : kFp8Dtypes) {
      for (const auto scale : kCastGranularities) {
        for (const bool transposed : kFlags) {
          specs.push_back(CastStatsSpec{.in = in, .out = out, .scale = scale, .transposed = transposed});
        }
      }
    }
  }
  for (const NormSpec& spec : all_valid_norms()) specs.push_back(spec);
  for (const NormBackwardSpec& spec : all_valid_norm_backwards()) specs.push_back(spec);
  for (const AmaxReduction reduction : kAmaxReductions) specs.push_back(AmaxHistorySpec{.reduction = reduction});
  return specs;
}

}  // namespace ingot
