// Grouped GEMMs: their text, the check of which are valid, their hash, the list of all, and the choice of a tiling.
#include "ingot/codegen/gemm/grouped_gemm_spec.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "gemm/gemm_sm90_experts.cuh"
#include "ingot/codegen/gemm/gemm_estimate.h"
#include "ingot/codegen/gemm/gemm_sm90.h"
#include "ingot/codegen/types/spec_hash.h"
#include "ingot/codegen/types/spec_reader.h"
#include "ingot/codegen/types/template_types.h"

namespace ingot {
namespace {

static_assert(kMostExperts == kSm90MostExperts);

// Why the spec's grouped GEMM cannot have this tiling, for messages; empty if it can.
std::string grouped_tiling_fault(const GroupedGemmSpec& spec, const GemmTiling& t) {
  if (t.stream_k) return "stream-K, but where tiles are is known on the device only";
  // Their store needs the registers in which a thread would keep where it is.
  constexpr u32 kMostSumsOfF32 = 128;
  const u32 sums = sm90_sums(sm90_tiling(t), false);
  if (spec.gemm.out == Dtype::f32 && sums > kMostSumsOfF32) {
    return fmt::format("{} outputs in each thread, but where those are f32 its registers hold {}: take a smaller tile",
                       sums, kMostSumsOfF32);
  }
  GemmSm90Config config{.tiling = sm90_tiling(t), .scale_b = template_granularity(spec.gemm.scale_b)};
  config.experts = true;
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
    if (!grouped_tiling_fault(spec, tiling).empty()) continue;
    const MatmulSize padded{.m = padded_rows(size, experts, tiling), .n = size.n, .k = size.k};
    const double us = estimate_gemm(spec.gemm, padded, tiling, multiprocessors);
    if (chosen.gemm.tiling && us >= least) continue;
    chosen.gemm.tiling = tiling;
    least = us;
  }
  return chosen;
}

std::string print_spec(const GroupedGemmSpec& spec) { return "grouped_" + print_spec(spec.gemm); }

void validate_spec(const GroupedGemmSpec& spec) {
  const GemmSpec& gemm = spec.gemm;
  validate_spec(gemm);
  validate_operands(spec);
  if (gemm.kernel != GemmKernel::automatic && gemm.kernel != GemmKernel::sm90) {
    refuse(spec, fmt::format("kernel is {}, but sm90 alone has grouped GEMMs: leave kernel out", name(gemm.kernel)));
  }
  if (gemm.staged_a || gemm.staged_b) refuse(spec, "staged is set, but grouped GEMMs read operands as they are stored");
  if (gemm.bias) refuse(spec, "bias is set, but grouped GEMMs have none");
  if (gemm.epilogue != GemmEpilogue{}) refuse(spec, "it has an epilogue, but grouped GEMMs have none");
  if (is_fp8(gemm.out)) {
    refuse(spec, fmt::format("out is {}, but must be one of {}", name(gemm.out), list(kHighPrecisionDtypes)));
  }
  if (!gemm.tiling) return;
  const std::string fault = grouped_tiling_fault(spec, *gemm.tiling);
  if (!fault.empty()) refuse(spec, fmt::format("tiling has {}", fault));
}

std::uint64_t hash_spec(const GroupedGemmSpec& spec) { return mix(seed<GroupedGemmSpec>() + hash_spec(spec.gemm)); }

// The words are those of a GEMM.
void read_spec(const SpecReader& reader, GroupedGemmSpec& spec) { read_spec(reader, spec.gemm); }

void list_valid(std::vector<GroupedGemmSpec>& specs) {
  std::vector<GemmSpec> gemms;
  list_valid(gemms);
  for (const GemmSpec& gemm : gemms) {
    const bool along_k = gemm.layout_a == Layout::k_major && gemm.layout_b == Layout::k_major;
    if (!gemm.bias && along_k && sm90_multiplies(gemm)) specs.push_back({gemm});
  }
}

ExtraPasses extra_passes(const GroupedGemmSpec&) { return {}; }

}  // namespace ingot
