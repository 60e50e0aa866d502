// The estimate of dequant_mma: rounds of blocks, each as long as its stages, which take what their instructions take or
// what the memory's latency leaves, whichever is longer; never less than reading the weight takes. Constants:
// dequant_costs.h.
//
// batch_invariant: a row's result depends on the order of its sums, which is decided by the tiling but for its tokens.
// What is otherwise free is then decided for kInvariantTokens tokens, whatever M is.
#include "ingot/codegen/dequant_candidates.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "ingot/codegen/dequant_costs.h"
#include "ingot/codegen/dequant_tiling.h"

namespace ingot {
namespace {

constexpr std::int64_t kInvariantTokens = 16;

std::int64_t divided(std::int64_t size, std::int64_t by) { return (size + by - 1) / by; }

// ---- mma ----

struct MmaShape {
  int rows, k_warps;
};
constexpr std::array kMmaShapes{MmaShape{64, 4}, MmaShape{64, 2}, MmaShape{128, 2}, MmaShape{128, 1}};
constexpr std::array kMmaTokens{8, 16, 32, 64};
constexpr std::array kMmaSplits{1, 2, 3, 4, 6, 8, 12, 16};

// The tokens of a tile that are not many more than there are.
int fitting_tokens(std::int64_t m, int most) {
  for (const int tokens : kMmaTokens) {
    if (tokens >= m || tokens == most) return tokens;
  }
  return most;
}

int most_tokens(const MmaShape& shape) { return shape.rows / 16 * shape.k_warps > 8 ? 32 : 64; }

DequantTiling mma_tiling(const MmaShape& shape, int tokens, int split) {
  return {.tokens = tokens,
          .rows = shape.rows,
          .depth = 64 * shape.k_warps,
          .stages = 3,
          .split = split,
          .k_warps = shape.k_warps};
}

std::vector<DequantTiling> mma_tilings(const DequantSize& size) {
  std::vector<DequantTiling> all;
  for (const MmaShape& shape : kMmaShapes) {
    const int fitting = fitting_tokens(size.m, most_tokens(shape));
    for (const int tokens : kMmaTokens) {
      if (tokens > fitting || 2 * tokens < fitting) continue;
      for (const int split : kMmaSplits) {
        // A part of fewer than two stages is mostly its beginning and its end.
        if (split != 1 && divided(size.k, 64 * shape.k_warps) < 2 * split) continue;
        all.push_back(mma_tiling(shape, tokens, split));
      }
    }
  }
  return all;
}

double estimate_mma(const DequantMatmulSpec& spec, const DequantSize& size, const DequantTiling& t,
                    int multiprocessors) {
  constexpr const costs::DequantMmaCosts& kCosts = costs::kDequantMma;
  const double tiles = static_cast<double>(divided(size.m, t.tokens)) * static_cast<double>(divided(size.n, t.rows));
  const double warps = t.rows / 16.0 * t.k_warps;
  const double at_once = t.tokens == 64 ? 2 : std::max(1.0, 24 / warps);  // blocks of a multiprocessor
  const double stages = std::ceil(static_cast<double>(divided(size.k, t.depth)) / t.split);
  const double blocks = tiles * t.split;
  const double room = std::max(1, multiprocessors) * at_once;
  const double rounds = std::max(1.0, blocks <= room ? 1.0 : blocks / room);
  const double together = std::min(at_once, std::ceil(blocks / std::max(1, multiprocessors)));
  const double eights = t.tokens / 8.0;
  const double groups = spec.scale.cols == 0 ? 0 : spec.scale.cols == 32 ? 2 : 1;
  const double issue = warps * (kCosts.codes_ns + eights * (kCosts.tokens_ns + groups * kCosts.group_ns)) / 4;
  const double stage = std::max(issue * together, kCosts.stage_ns + issue);
  const double ns = rounds * (stages * stage + kCosts.tile_ns);
  const double bytes = static_cast<double>(size.n) * static_cast<double>(size.k) * bits_of(spec.weight) / 8;
  const double x_bytes = 2.0 * static_cast<double>(size.k) * tiles * t.tokens;
  const double weight_passes = bytes * static_cast<double>(divided(size.m, t.tokens));
  const double memory = std::max(bytes / kCosts.bytes_per_us, (x_bytes + weight_passes) / kCosts.x_bytes_per_us);
  const double parts = t.split == 1 ? 0 : kCosts.split_us + 8.0 * blocks * t.tokens * t.rows / kCosts.part_bytes_per_us;
  return kCosts.start_us + std::max(ns * 1e-3, memory) + parts;
}

// ---- both ----

bool runs_there(DequantKernel kernel, const DequantMatmulSpec& spec, const DequantPlace& place) {
  if (kernel == DequantKernel::sm90) return false;
  return place.target.major >= 8 && (spec.layout == WeightLayout::packed || spec.layout == WeightLayout::row_major);
}

DequantMatmulSpec with(DequantMatmulSpec spec, DequantKernel kernel, const DequantTiling& tiling) {
  spec.kernel = kernel;
  spec.tiling = tiling;
  return spec;
}

DequantTiling cheapest(const DequantMatmulSpec& spec, const DequantSize& size, const DequantPlace& place,
                       const std::vector<DequantTiling>& all) {
  const DequantTiling* best = nullptr;
  double least = 0;
  for (const DequantTiling& tiling : all) {
    const double us = estimate_dequant(spec, size, tiling, place);
    if (best != nullptr && us >= least) continue;
    best = &tiling;
    least = us;
  }
  return *best;
}

// Do two tilings add up a row's products in the same order, of whatever number of tokens?
bool same_order(DequantTiling a, const DequantTiling& b) {
  a.tokens = b.tokens;
  a.stages = b.stages;
  a.multicast = b.multicast;
  a.blocks = b.blocks;
  return a == b;
}

}  // namespace

std::vector<DequantTiling> dequant_tilings(const DequantMatmulSpec& spec, const DequantSize& size,
                                           const DequantPlace& place) {
  if (spec.tiling) return {*spec.tiling};
  const auto offered = [&](const DequantSize& sizes) {
    return spec.kernel == DequantKernel::mma ? mma_tilings(sizes) : std::vector<DequantTiling>();
  };
  if (!spec.batch_invariant) return offered(size);
  const DequantSize fixed{.m = kInvariantTokens, .n = size.n, .k = size.k};
  const std::vector<DequantTiling> of_fixed = offered(fixed);
  if (of_fixed.empty()) return {};
  const DequantTiling chosen = cheapest(spec, fixed, place, of_fixed);
  std::vector<DequantTiling> all;
  for (const DequantTiling& tiling : offered(size)) {
    if (same_order(tiling, chosen)) all.push_back(tiling);
  }
  return all.empty() ? std::vector{chosen} : all;
}

double estimate_dequant(const DequantMatmulSpec& spec, const DequantSize& size, const DequantTiling& tiling,
                        const DequantPlace& place) {
  return estimate_mma(spec, size, tiling, place.multiprocessors);
}

std::vector<DequantMatmulSpec> dequant_order(const DequantMatmulSpec& spec, const DequantSize& size,
                                             const DequantPlace& place) {
  std::vector<DequantMatmulSpec> order;
  for (const DequantKernel kernel : {DequantKernel::sm90, DequantKernel::mma}) {
    if (spec.kernel != DequantKernel::automatic ? kernel != spec.kernel : !runs_there(kernel, spec, place)) continue;
    DequantMatmulSpec named = spec;
    named.kernel = kernel;
    const std::vector<DequantTiling> all = dequant_tilings(named, size, place);
    if (!all.empty()) order.push_back(with(spec, kernel, cheapest(named, size, place, all)));
  }
  return order;
}

std::vector<DequantMatmulSpec> dequant_candidates(const DequantMatmulSpec& spec, const DequantSize& size,
                                                  const DequantPlace& place) {
  std::vector<DequantMatmulSpec> all = dequant_order(spec, size, place);
  if (all.size() > 1) all.resize(1);
  for (const DequantKernel kernel : {DequantKernel::sm90, DequantKernel::mma}) {
    if (spec.kernel != DequantKernel::automatic ? kernel != spec.kernel : !runs_there(kernel, spec, place)) continue;
    DequantMatmulSpec named = spec;
    named.kernel = kernel;
    for (const DequantTiling& tiling : dequant_tilings(named, size, place)) {
      const DequantMatmulSpec candidate = with(spec, kernel, tiling);
      if (all.empty() || candidate != all.front()) all.push_back(candidate);
    }
  }
  return all;
}

}  // namespace ingot
