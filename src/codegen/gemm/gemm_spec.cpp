#include "ingot/codegen/gemm/gemm_spec.h"
#include <fmt/format.h>
#include <array>
#include <utility>
#include "ingot/codegen/types/spec_hash.h"
#include "ingot/codegen/types/spec_reader.h"
#include "ingot/codegen/types/template_text.h"

namespace ingot {
namespace {

constexpr std::string_view kStreamK = ":streamk";
constexpr std::array<std::string_view, 5> kNames{"automatic", "cublaslt", "sm90", "mma", "simt"};

}  // namespace

std::string_view name(GemmKernel kernel) {
  const auto index = static_cast<std::size_t>(kernel);
  return index < kNames.size() ? kNames[index] : "unknown kernel";
}

std::optional<GemmKernel> parse_gemm_kernel(std::string_view text) {
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    if (kNames[i] == text) return static_cast<GemmKernel>(i);
  }
  return std::nullopt;
}

std::string print(const GemmTiling& t) {
  return fmt::format("{}x{}:{}x{}:{}:{}{}", t.m, t.n, t.cluster_m, t.cluster_n, t.stages,
                     t.pingpong ? "pingpong" : "cooperative", t.stream_k ? kStreamK : "");
}

std::optional<GemmTiling> parse_gemm_tiling(std::string_view text) {
  GemmTiling tiling;
  for (const auto& [field, end] :
       {std::pair{&tiling.m, 'x'}, std::pair{&tiling.n, ':'}, std::pair{&tiling.cluster_m, 'x'},
        std::pair{&tiling.cluster_n, ':'}, std::pair{&tiling.stages, ':'}}) {
    const std::optional<int> value = take_number(text, end);
    if (!value) return std::nullopt;
    *field = *value;
  }
  tiling.stream_k = text.ends_with(kStreamK);
  if (tiling.stream_k) text.remove_suffix(kStreamK.size());
  if (text != "pingpong" && text != "cooperative") return std::nullopt;
  tiling.pingpong = text == "pingpong";
  return tiling;
}

std::string print_mma_tiling(const GemmTiling& t) { return fmt::format("{}x{}", t.m, t.n); }

std::optional<GemmTiling> parse_mma_tiling(std::string_view text) {
  for (const GemmTiling& tiling : kMmaTilings) {
    if (print_mma_tiling(tiling) == text) return tiling;
  }
  return std::nullopt;
}

namespace {

constexpr std::array kFlags{false, true};

// The BLAS letters say whether A and B are stored transposed: A as [M, K] is not, B as [N, K] is.
std::string layout_letters(Layout a, Layout b) {
  return {a == Layout::k_major ? 'n' : 't', b == Layout::k_major ? 't' : 'n'};
}

void list_grouped(std::vector<GemmSpec>& specs, Dtype a, Dtype b) {
  for (const Dtype out : kHighPrecisionDtypes) {
    for (const ScaleGranularity scale_b : kGroupedScalesOfB) {
      for (const bool bias : kFlags) {
        specs.push_back({.a = a, .b = b, .out = out, .scale_a = kRowGroups, .scale_b = scale_b, .bias = bias});
      }
    }
  }
}

void list_fp8(std::vector<GemmSpec>& specs, GemmSpec spec) {
  for (const auto scale_a : {kTensorwise, kRowwise}) {
    for (const auto scale_b : {kTensorwise, kRowwise}) {
      for (const bool bias : kFlags) {
        for (const bool fast : kFlags) {
          spec.scale_a = scale_a;
          spec.scale_b = scale_b;
          spec.bias = bias;
          spec.fast_accumulation = fast;
          specs.push_back(spec);
        }
      }
    }
  }
}

void list_high_precision(std::vector<GemmSpec>& specs, Dtype in, Dtype out) {
  for (const auto layout_a : {Layout::k_major, Layout::mn_major}) {
    for (const auto layout_b : {Layout::k_major, Layout::mn_major}) {
      for (const bool bias : kFlags) {
        specs.push_back({.a = in, .b = in, .out = out, .layout_a = layout_a, .layout_b = layout_b, .bias = bias});
      }
    }
  }
}

void list_mixed(std::vector<GemmSpec>& specs, Dtype high, Dtype fp8) {
  for (const auto scale : {kTensorwise, kRowwise}) {
    for (const Dtype out : {high, Dtype::f32}) {
      specs.push_back({.a = high, .b = fp8, .out = out, .scale_b = scale});
      specs.push_back({.a = fp8, .b = high, .out = out, .scale_a = scale});
    }
  }
}

}  // namespace

bool has_group_scale_inv(const GemmSpec& spec) {
  const auto grouped = [](ScaleGranularity scale) { return among(kGroupedScalesOfB, scale); };
  return grouped(spec.scale_a) || grouped(spec.scale_b);
}

bool sm90_multiplies(const GemmSpec& spec) {
  if (is_ocp(spec.a) && is_ocp(spec.b)) return true;
  return spec.a == spec.b && (spec.a == Dtype::bf16 || spec.a == Dtype::f16);
}

bool sums_in_tensor_cores(const GemmSpec& spec) { return spec.fast_accumulation || !is_fp8(spec.a); }

Dtype bias_dtype(const GemmSpec& spec) {
  return is_fp8(spec.out) || (spec.out == Dtype::f32 && is_fp8(spec.a) && is_fp8(spec.b)) ? Dtype::bf16 : spec.out;
}

Dtype epilogue_dtype(const GemmSpec& spec) { return is_fp8(spec.out) ? Dtype::bf16 : spec.out; }

std::string print_spec(const GemmSpec& spec) {
  std::string line = fmt::format("gemm {}*{}->{} {}", name(spec.a), name(spec.b), name(spec.out),
                                 layout_letters(spec.layout_a, spec.layout_b));
  // High-precision operands have no scale; one that is set by mistake is printed, because validate_spec() quotes this
  // line.
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

std::uint64_t hash_spec(const GemmSpec& spec) {
  const GemmEpilogue& epilogue = spec.epilogue;
  const auto flags = (spec.bias ? 1 : 0) | (spec.fast_accumulation ? 2 : 0) | (epilogue.preactivation ? 4 : 0) |
                     (epilogue.amax ? 8 : 0) | (spec.staged_a ? 16 : 0) | (spec.staged_b ? 32 : 0);
  const int c = epilogue.c ? 1 + static_cast<int>(*epilogue.c) : 0;
  const GemmTiling t = spec.tiling.value_or(GemmTiling{.m = 0});
  return mix(
      seed<GemmSpec>() + pack(spec.a, spec.b, spec.out, spec.layout_a, spec.layout_b, flags, spec.kernel) +
      (epilogue.pointwise ? mix(epilogue.pointwise.hash()) : 0) + mix(pack(spec.algorithm, c)) +
      mix(bits(spec.scale_a) + mix(bits(spec.scale_b) + pack(t.m / 2, t.n / 2, t.cluster_m, t.cluster_n, t.stages,
                                                             t.pingpong, spec.tiling.has_value(), t.stream_k))));
}

// All that leave the choice of the kernel to the library, have no epilogue, an output of high precision and k_major FP8
// operands; without a bias where only one operand is FP8.
void list_valid(std::vector<GemmSpec>& specs) {
  for (const Dtype a : kFp8Dtypes) {
    for (const Dtype b : kFp8Dtypes) list_grouped(specs, a, b);
  }
  for (const Dtype a : kFp8Dtypes) {
    for (const Dtype b : kFp8Dtypes) {
      for (const Dtype out : kHighPrecisionDtypes) list_fp8(specs, {.a = a, .b = b, .out = out});
    }
  }
  for (const Dtype in : kHighPrecisionDtypes) {
    for (const Dtype out : kHighPrecisionDtypes) {
      if (out == in || out == Dtype::f32) list_high_precision(specs, in, out);
    }
  }
  for (const Dtype high : {Dtype::bf16, Dtype::f16}) {
    for (const Dtype fp8 : kFp8Dtypes) list_mixed(specs, high, fp8);
  }
}

std::string print_spec(const RelayoutSpec& spec) { return spec.transposed ? "relayout transposed" : "relayout copied"; }

void validate_spec(const RelayoutSpec&) {}

std::uint64_t hash_spec(const RelayoutSpec& spec) { return mix(seed<RelayoutSpec>() + pack(spec.transposed)); }

void read_spec(const SpecReader& reader, RelayoutSpec& spec) {
  constexpr const char* kForm = "copied or transposed";
  reader.require_words(2, kForm);
  const std::string& word = reader.word(1);
  if (word != "copied" && word != "transposed") reader.fail(fmt::format("\"{}\" must be {}", word, kForm));
  spec.transposed = word == "transposed";
  reader.no_options(2, "nothing more");
}

void list_valid(std::vector<RelayoutSpec>& specs) { specs.assign({{.transposed = false}, {.transposed = true}}); }

ExtraPasses extra_passes(const RelayoutSpec&) { return {}; }

TemplateInstance template_instance(const RelayoutSpec& spec, Pass) {
  return {"gemm/relayout.cuh",
          fmt::format("relayout<{}>", aggregate_text("RelayoutConfig", {field("transposed", spec.transposed)})),
          print_spec(spec)};
}

}  // namespace ingot
