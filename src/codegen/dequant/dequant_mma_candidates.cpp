// The estimate: rounds of blocks, each as long as its stages. A stage takes as long as its instructions or as the
// memory's latency, whichever is longer. The whole takes at least the time to read the weight. Constants:
// dequant_costs.h.
#include "ingot/codegen/dequant/dequant_mma_candidates.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

#include "ingot/codegen/dequant/dequant_costs.h"
#include "ingot/codegen/dequant/dequant_tiling.h"
#include "ingot/codegen/types/divided_up.h"

namespace ingot {
namespace {

struct MmaShape {
  int rows, k_warps;
};
constexpr std::array kMmaShapes{MmaShape{64, 4}, MmaShape{64, 2}, MmaShape{128, 2}, MmaShape{128, 1}};
constexpr std::array kMmaTokens{8, 16, 32, 64};
constexpr std::array kMmaSplits{1, 2, 3, 4, 6, 8, 12, 16};

// The smallest tile that holds m tokens, but no larger than `most`.
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

}  // namespace

std::vector<DequantTiling> dequant_mma_tilings(const MatmulSize& size) {
  std::vector<DequantTiling> all;
  for (const MmaShape& shape : kMmaShapes) {
    const int fitting = fitting_tokens(size.m, most_tokens(shape));
    for (const int tokens : kMmaTokens) {
      if (tokens > fitting || 2 * tokens < fitting) continue;
      for (const int split : kMmaSplits) {
        // In a part of fewer than two stages, starting and finishing take most of the time.
        if (split != 1 && divided_up(size.k, 64 * shape.k_warps) < 2 * split) continue;
        all.push_back(mma_tiling(shape, tokens, split));
      }
    }
  }
  return all;
}

std::vector<DequantTiling> dequant_mma_tilings_like(const DequantTiling& tiling, const MatmulSize& size) {
  std::vector<DequantTiling> all = dequant_mma_tilings(size);
  std::erase_if(all, [&](DequantTiling each) {
    each.tokens = tiling.tokens;
    return each != tiling;
  });
  return all;
}

double estimate_dequant_mma(const DequantMatmulSpec& spec, const MatmulSize& size, const DequantTiling& t,
                            int multiprocessors) {
  constexpr const costs::DequantMmaCosts& kCosts = costs::kDequantMma;
  const double tiles =
      static_cast<double>(divided_up(size.m, t.tokens)) * static_cast<double>(divided_up(size.n, t.rows));
  const double warps = t.rows / 16.0 * t.k_warps;
  const double at_once = t.tokens == 64 ? 2 : std::max(1.0, 24 / warps);  // blocks on a multiprocessor
  const double stages = std::ceil(static_cast<double>(divided_up(size.k, t.depth)) / t.split);
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
  const double weight_passes = bytes * static_cast<double>(divided_up(size.m, t.tokens));
  const double memory = std::max(bytes / kCosts.bytes_per_us, (x_bytes + weight_passes) / kCosts.x_bytes_per_us);
  const double parts = t.split == 1 ? 0 : kCosts.split_us + 8.0 * blocks * t.tokens * t.rows / kCosts.part_bytes_per_us;
  return kCosts.start_us + std::max(ns * 1e-3, memory) + parts;
}

}  // namespace ingot
