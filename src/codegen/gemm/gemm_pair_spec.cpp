// Pairs of GEMMs: their text, the check of which are valid, their hash and the list of all.
#include "ingot/codegen/gemm/gemm_spec.h"

#include <fmt/format.h>

#include <utility>

#include "ingot/codegen/gemm/gemm_sm90.h"
#include "ingot/codegen/types/spec_hash.h"
#include "ingot/codegen/types/spec_reader.h"

namespace ingot {
namespace {

// The line of a GEMM without the word that begins it.
std::string line_of(const GemmSpec& spec) { return print_spec(spec).substr(GemmSpec::kWord.size() + 1); }

GemmSpec read_gemm(const SpecReader& reader, const SpecOption& option) {
  if (option.value.starts_with("gemm ")) {
    reader.fail(fmt::format("{} begins with the word gemm: leave it out", option.key));
  }
  const std::string line = fmt::format("{} {}", GemmSpec::kWord, option.value);
  GemmSpec spec;
  read_spec(SpecReader(line), spec);
  return spec;
}

const char* take_option(const SpecReader& reader, const SpecOption& option, GemmPairSpec& spec) {
  if (option.key == "first" && option.has_value()) return spec.first = read_gemm(reader, option), "the first GEMM";
  if (option.key == "second" && option.has_value()) return spec.second = read_gemm(reader, option), "the second GEMM";
  return nullptr;
}

GemmSpec in_tiles(GemmSpec spec, const GemmTiling& tiling) {
  spec.kernel = GemmKernel::sm90;
  spec.tiling = tiling;
  return spec;
}

}  // namespace

std::string pair_fault(const GemmSpec& spec) {
  if (spec.kernel != GemmKernel::sm90 || !spec.tiling) {
    return "must name kernel sm90 and a tiling, such as kernel=sm90:128x128:1x1:6:pingpong";
  }
  const GemmTiling& t = *spec.tiling;
  if (t.stream_k) return "has a tiling of stream-K, which divides all multiprocessors";
  if (t.cluster_m != 1 || t.cluster_n != 1) return "has a tiling with clusters, but the pair's blocks have none";
  if (sm90_consumers(sm90_tiling(t)) == 3) return "has a cooperative tile of 192 rows, whose blocks have more threads";
  if (spec.staged_a || spec.staged_b) return "stages an operand, which takes a separate launch";
  const bool along_k = spec.layout_a == Layout::k_major && spec.layout_b == Layout::k_major;
  if (is_fp8(spec.a) && !along_k) return "has FP8 operands across k, which would have to be staged";
  const GemmEpilogue& epilogue = spec.epilogue;
  if (spec.bias) return "has a bias";
  if (epilogue.pointwise || epilogue.amax) return "has an epilogue that does more than add c";
  if (is_fp8(spec.out)) return "has an FP8 output";
  return {};
}

std::string print_spec(const GemmPairSpec& spec) {
  return fmt::format("{} first=\"{}\" second=\"{}\"", GemmPairSpec::kWord, line_of(spec.first), line_of(spec.second));
}

void validate_spec(const GemmPairSpec& spec) {
  for (const auto& [which, gemm] : {std::pair{"first", &spec.first}, std::pair{"second", &spec.second}}) {
    validate_but_sums(*gemm);
    if (const std::string fault = pair_fault(*gemm); !fault.empty()) refuse(spec, fmt::format("{} {}", which, fault));
    if (const std::string fault = sums_fault(*gemm); !fault.empty()) {
      refuse(spec, fmt::format("{} has a tiling with {}", which, fault));
    }
  }
}

std::uint64_t hash_spec(const GemmPairSpec& spec) {
  return mix(seed<GemmPairSpec>() + hash_spec(spec.first) + mix(hash_spec(spec.second)));
}

void read_spec(const SpecReader& reader, GemmPairSpec& spec) {
  constexpr const char* kForm = "first=\"<a gemm's line>\" and second=\"<a gemm's line>\", without the word gemm";
  reader.require_words(3, kForm);
  reader.each_option(1, kForm, [&](const SpecOption& option) { return take_option(reader, option, spec); });
}

void list_valid(std::vector<GemmPairSpec>& specs) {
  constexpr GemmTiling kPingpong{.m = 128, .n = 128, .stages = 6, .pingpong = true};
  constexpr GemmTiling kShared{.m = 128, .n = 128, .stages = 6};
  for (const Dtype dtype : {Dtype::bf16, Dtype::f16}) {
    GemmSpec grad_input{.a = dtype, .b = dtype, .out = dtype, .layout_b = Layout::mn_major};
    GemmSpec grad_weight = grad_input;
    grad_weight.layout_a = Layout::mn_major;
    specs.push_back({in_tiles(grad_input, kPingpong), in_tiles(grad_weight, kPingpong)});
  }
  for (const Dtype gradient : {Dtype::e4m3fn, Dtype::e5m2}) {
    for (const ScaleGranularity scale : {kTensorwise, kRowwise}) {
      for (const bool fast : {false, true}) {
        const GemmSpec gemm{.a = gradient, .scale_a = scale, .scale_b = scale, .fast_accumulation = fast};
        const GemmTiling& tiling = fast ? kPingpong : kShared;
        specs.push_back({in_tiles(gemm, tiling), in_tiles(gemm, tiling)});
      }
    }
    const GemmSpec blocks{.a = gradient, .scale_a = kRowGroups, .scale_b = kBlocks};
    const GemmSpec groups{.a = gradient, .scale_a = kRowGroups, .scale_b = kRowGroups};
    specs.push_back({in_tiles(blocks, kShared), in_tiles(groups, kShared)});
  }
}

}  // namespace ingot
