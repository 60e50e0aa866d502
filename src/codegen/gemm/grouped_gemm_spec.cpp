// Grouped GEMMs: their text, the check of which are valid, their hash, the list of all, and the choice of a tiling.
#include "ingot/codegen/gemm/grouped_gemm_spec.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "gemm/gemm_sm90_experts.cuh"
#include "ingot/codegen/gemm/gemm_estimate.h"
#include "ingot/codegen/gemm/gemm_sm90.h"
#include "ingot/codegen/gemm/gemm_words.h"
#include "ingot/codegen/types/spec_hash.h"
#include "ingot/codegen/types/spec_reader.h"
#include "ingot/codegen/types/template_types.h"

namespace ingot {
namespace {

static_assert(kMostExperts == kSm90MostExperts);

// Why the spec's grouped GEMM cannot have this tiling, for messages; empty if it can.
std::string grouped_tiling_fault(const GroupedGemmSpec& spec, const GemmTiling& t) {
  if (t.stream_k) return "stream-K, but where tiles are is known on the device only";
  if (t.n % 64 != 0) return fmt::format("a tile of {} columns, but grouped GEMMs take a multiple of 64", t.n);
  // Their store needs the registers in which a thread would keep where it is.
  constexpr u32 kMostSumsOfF32 = 128;
  const u32 sums = sm90_sums(sm90_tiling(t), 0);
  if (spec.gemm.out == Dtype::f32 && sums > kMostSumsOfF32) {
    return fmt::format("{} outputs in each thread, but where those are f32 its registers hold {}: take a smaller tile",
                       sums, kMostSumsOfF32);
  }
  GemmSm90Config config{.tiling = sm90_tiling(t), .scale_b = template_granularity(spec.gemm.scale_b)};
  config.experts = true;
  config.along_k = spec.along_k;
  const u32 bytes = sm90_shared_bytes(config);
  if (bytes <= kSm90SharedLimit) return {};
  return fmt::format(
      "{} bytes of shared memory with those for where experts end, but a block has {}: fewer stages or "
      "a smaller tile",
      bytes, kSm90SharedLimit);
}

void validate_operands(const GroupedGemmSpec& spec) {
  const GemmSpec& gemm = spec.gemm;
  if (!sm90_multiplies(gemm)) {
    refuse(spec, fmt::format("a is {} and b is {}, but grouped GEMMs multiply e4m3fn and e5m2, or two operands of bf16 "
                             "or of f16, only",
                             name(gemm.a), name(gemm.b)));
  }
  if (gemm.layout_a != Layout::k_major || gemm.layout_b != Layout::k_major) {
    refuse(spec, "the layouts are not nt, but grouped GEMMs read both operands in rows along k");
  }
}

// The expected number of cluster tiles' rows, all experts together: one of each expert is only half full, unless its
// rows are fewer.
std::int64_t padded_rows(const MatmulSize& size, std::int64_t experts, const GemmTiling& t) {
  const std::int64_t tile = std::int64_t{t.m} * t.cluster_m;
  const std::int64_t with_rows = std::min(experts, size.m);
  return std::max(with_rows * tile, size.m + with_rows * tile / 2);
}

// What the GEMMs of all experts are to the cost model: one that has the same tiles and, on average, as many steps.
MatmulSize padded_size(const GroupedGemmSpec& spec, const MatmulSize& size, std::int64_t experts, const GemmTiling& t) {
  if (!spec.along_k) return {.m = padded_rows(size, experts, t), .n = size.n, .k = size.k};
  // Elements: an expert's first step begins at a multiple, if rows do. With groups it has whole slots.
  const std::int64_t kBegin = has_group_scale_inv(spec.gemm) ? 128 : 64;
  const std::int64_t tile = std::int64_t{t.m} * t.cluster_m;
  const std::int64_t columns = std::max<std::int64_t>(size.k / experts, 1);
  return {.m = experts * divided_up(size.m, tile) * tile,
          .n = size.n,
          .k = divided_up(columns, kBegin) * kBegin + size.k % kBegin};
}

// Tilings of scale_inv of groups that were not measured with experts, or lost (gemm_blocks_tiles_h200.json).
bool has_to_be_named(const GroupedGemmSpec& spec, const GemmTiling& t) {
  if (!has_group_scale_inv(spec.gemm)) return false;
  const Sm90Tiling tiling = sm90_tiling(t);
  if (sm90_consumers(tiling) == 3) return spec.along_k || spec.gemm.scale_b != kRowGroups;
  return sm90_has_halves(tiling);
}
// What three warpgroups take of the estimate, so that they are chosen in the layers in which they were the fastest.
constexpr double kThreeWithExperts = 1.09;

void validate_along_k(const GroupedGemmSpec& spec) {
  const GemmSpec& gemm = spec.gemm;
  if (has_group_scale_inv(gemm) && gemm.scale_b != kRowGroups) {
    refuse(spec, fmt::format("scale is {},{}, but must be tensor or row for both, or 1x128 for both: along K, blocks "
                             "would have columns of the gradient in common",
                             print(gemm.scale_a), print(gemm.scale_b)));
  }
  if (gemm.epilogue != GemmEpilogue{.c = gemm.epilogue.c}) {
    refuse(spec, "its epilogue does more than add c, but grouped GEMMs along K have no other");
  }
  if (!gemm.epilogue.c || (gemm.out == Dtype::f32 && gemm.epilogue.c == Dtype::f32)) return;
  refuse(spec, fmt::format("c is {} and out is {}, but grouped GEMMs add f32 to f32 only", name(*gemm.epilogue.c),
                           name(gemm.out)));
}

}  // namespace

std::vector<GemmTiling> grouped_tilings(const GroupedGemmSpec& spec) {
  const std::span<const GemmTiling> all = gemm_tilings(spec.gemm);
  std::vector<GemmTiling> tilings(all.begin(), all.end());
  std::erase_if(tilings, [&](const GemmTiling& tiling) { return !grouped_tiling_fault(spec, tiling).empty(); });
  return tilings;
}

GroupedGemmSpec with_grouped_tiling(const GroupedGemmSpec& spec, const MatmulSize& size, std::int64_t experts,
                                    int multiprocessors) {
  GroupedGemmSpec chosen = spec;
  chosen.gemm.kernel = GemmKernel::sm90;
  if (spec.gemm.tiling) return chosen;
  double least = 0;
  for (const GemmTiling& tiling : gemm_tilings(spec.gemm)) {
    if (has_to_be_named(spec, tiling) || !grouped_tiling_fault(spec, tiling).empty()) continue;
    const MatmulSize padded = padded_size(spec, size, experts, tiling);
    const bool three = sm90_consumers(sm90_tiling(tiling)) == 3;
    const double us = estimate_gemm(spec.gemm, padded, tiling, multiprocessors) * (three ? kThreeWithExperts : 1);
    if (chosen.gemm.tiling && us >= least) continue;
    chosen.gemm.tiling = tiling;
    least = us;
  }
  return chosen;
}

std::string print_spec(const GroupedGemmSpec& spec) {
  return "grouped_" + print_spec(spec.gemm) + (spec.along_k ? " along=k" : "");
}

void validate_spec(const GroupedGemmSpec& spec) {
  const GemmSpec& gemm = spec.gemm;
  validate_but_sums(gemm);
  validate_operands(spec);
  if (gemm.kernel != GemmKernel::automatic && gemm.kernel != GemmKernel::sm90) {
    refuse(spec, fmt::format("kernel is {}, but sm90 alone has grouped GEMMs: leave kernel out", name(gemm.kernel)));
  }
  if (gemm.staged_a || gemm.staged_b) refuse(spec, "staged is set, but grouped GEMMs read operands as they are stored");
  if (gemm.bias && spec.along_k) refuse(spec, "bias is set, but grouped GEMMs along K have none");
  if (spec.along_k) {
    validate_along_k(spec);
  } else if (gemm.epilogue != GemmEpilogue{}) {
    refuse(spec, "it has an epilogue, but grouped GEMMs have none");
  }
  if (is_fp8(gemm.out)) {
    refuse(spec, fmt::format("out is {}, but must be one of {}", name(gemm.out), list(kHighPrecisionDtypes)));
  }
  if (!gemm.tiling) return;
  std::string fault = grouped_tiling_fault(spec, *gemm.tiling);
  if (fault.empty()) fault = sums_fault(gemm);
  if (!fault.empty()) refuse(spec, fmt::format("tiling has {}", fault));
}

std::uint64_t hash_spec(const GroupedGemmSpec& spec) {
  return mix(seed<GroupedGemmSpec>() + hash_spec(spec.gemm) + pack(spec.along_k));
}

// The words are those of a GEMM, and one more.
void read_spec(const SpecReader& reader, GroupedGemmSpec& spec) {
  read_gemm_words(reader, spec.gemm, "along=k", [&](const SpecOption& option) -> const char* {
    if (option.word != "along=k") return nullptr;
    return spec.along_k = true, "along";
  });
}

void list_valid(std::vector<GroupedGemmSpec>& specs) {
  std::vector<GemmSpec> gemms;
  list_valid(gemms);
  for (const GemmSpec& gemm : gemms) {
    const bool rows_along_k = gemm.layout_a == Layout::k_major && gemm.layout_b == Layout::k_major;
    if (!rows_along_k || !sm90_multiplies(gemm)) continue;
    specs.push_back({gemm});
    if (gemm.bias) continue;
    if (has_group_scale_inv(gemm) && gemm.scale_b != kRowGroups) continue;
    specs.push_back({.gemm = gemm, .along_k = true});
    if (gemm.out != Dtype::f32) continue;
    specs.push_back({.gemm = gemm, .along_k = true});
    specs.back().gemm.epilogue.c = Dtype::f32;
  }
}

ExtraPasses extra_passes(const GroupedGemmSpec&) { return {}; }

}  // namespace ingot
