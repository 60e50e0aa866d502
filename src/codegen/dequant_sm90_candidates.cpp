// The estimate: rounds of clusters, each of as many stages as its part of K has, and the first stage once more, for
// which all wait. A stage takes the longest of what reading it takes, what decoding and multiplying it takes, one after
// the other, what a warp must wait for in each step of 32 k, and what copying factors row by row takes. And never less
// than the memory takes. Constants: dequant_costs.h.
#include "ingot/codegen/dequant_sm90_candidates.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <span>

#include "ingot/codegen/dequant_costs.h"
#include "ingot/codegen/dequant_sm90.h"
#include "ingot/codegen/dequant_tiling.h"

namespace ingot {
namespace {

// Of a block: tokens, warpgroups, waves, k of a stage, blocks of a multiprocessor, warpgroups that share a stage's k;
// and into how many parts K is cut. Those that were within a tenth of the best of some product
// (bench/results/weight_only_tilings_h200.json): what was never measured is not chosen by an estimate. Of equal
// estimates the first is chosen.
struct Sm90Shape {
  int tokens, groups, waves, depth, blocks, k_warps;
  std::array<int, 2> splits;
};
constexpr std::array kSm90MmaShapes{Sm90Shape{8, 1, 1, 512, 1, 1, {1, 2}},  Sm90Shape{8, 2, 1, 512, 1, 2, {2, 2}},
                                    Sm90Shape{8, 4, 1, 512, 1, 4, {2, 2}},  Sm90Shape{8, 1, 1, 256, 2, 1, {2, 4}},
                                    Sm90Shape{8, 2, 1, 256, 2, 2, {2, 4}},  Sm90Shape{8, 4, 1, 256, 2, 4, {2, 2}},
                                    Sm90Shape{8, 2, 1, 256, 1, 2, {2, 2}},  Sm90Shape{8, 2, 2, 256, 1, 2, {2, 2}},
                                    Sm90Shape{8, 3, 1, 128, 1, 1, {2, 2}},  Sm90Shape{8, 3, 1, 256, 1, 1, {2, 4}},
                                    Sm90Shape{8, 4, 1, 256, 1, 2, {4, 4}},  Sm90Shape{8, 4, 1, 512, 1, 2, {4, 4}},
                                    Sm90Shape{8, 2, 1, 512, 1, 1, {4, 4}},  Sm90Shape{8, 2, 1, 256, 1, 1, {4, 4}},
                                    Sm90Shape{8, 4, 1, 256, 1, 1, {4, 4}},  Sm90Shape{8, 4, 1, 128, 1, 1, {4, 4}},
                                    Sm90Shape{8, 2, 1, 128, 2, 1, {8, 8}},  Sm90Shape{16, 1, 1, 256, 2, 1, {2, 2}},
                                    Sm90Shape{16, 2, 1, 256, 2, 2, {2, 2}}, Sm90Shape{16, 2, 1, 512, 1, 2, {2, 2}},
                                    Sm90Shape{16, 4, 1, 512, 1, 4, {2, 2}}, Sm90Shape{16, 2, 2, 256, 1, 2, {2, 2}},
                                    Sm90Shape{16, 2, 1, 128, 1, 1, {2, 2}}, Sm90Shape{16, 3, 1, 128, 1, 1, {2, 2}},
                                    Sm90Shape{16, 3, 1, 256, 1, 1, {2, 4}}, Sm90Shape{16, 4, 1, 256, 1, 2, {4, 4}},
                                    Sm90Shape{16, 2, 1, 256, 1, 1, {4, 4}}, Sm90Shape{16, 2, 1, 128, 2, 1, {4, 4}},
                                    Sm90Shape{16, 4, 1, 128, 1, 1, {4, 4}}, Sm90Shape{16, 4, 1, 256, 1, 1, {4, 4}},
                                    Sm90Shape{32, 2, 1, 256, 1, 1, {2, 2}}};
constexpr std::array kSm90WgmmaShapes{Sm90Shape{16, 2, 1, 256, 1, 1, {2, 2}}, Sm90Shape{16, 4, 1, 128, 1, 1, {4, 4}},
                                      Sm90Shape{32, 1, 1, 128, 2, 1, {2, 2}}, Sm90Shape{32, 2, 1, 256, 1, 1, {2, 2}},
                                      Sm90Shape{32, 3, 1, 128, 1, 1, {2, 4}}, Sm90Shape{32, 3, 1, 256, 1, 1, {2, 2}},
                                      Sm90Shape{32, 4, 1, 128, 1, 1, {1, 2}}, Sm90Shape{32, 2, 1, 128, 1, 1, {2, 2}},
                                      Sm90Shape{32, 2, 1, 128, 2, 1, {4, 8}}, Sm90Shape{32, 1, 2, 128, 2, 1, {2, 2}},
                                      Sm90Shape{64, 1, 1, 128, 2, 1, {1, 2}}, Sm90Shape{64, 3, 1, 128, 1, 1, {2, 4}},
                                      Sm90Shape{64, 2, 1, 128, 1, 1, {1, 2}}, Sm90Shape{64, 2, 1, 256, 1, 1, {2, 2}},
                                      Sm90Shape{64, 4, 1, 128, 1, 1, {1, 2}}, Sm90Shape{64, 2, 2, 128, 1, 1, {1, 1}},
                                      Sm90Shape{64, 2, 1, 128, 2, 1, {1, 1}}, Sm90Shape{64, 2, 1, 64, 2, 1, {2, 2}},
                                      Sm90Shape{64, 1, 2, 64, 2, 1, {1, 1}},  Sm90Shape{128, 2, 1, 128, 1, 1, {1, 2}},
                                      Sm90Shape{128, 2, 2, 64, 1, 1, {1, 2}}, Sm90Shape{128, 3, 1, 64, 1, 1, {1, 2}},
                                      Sm90Shape{128, 4, 1, 64, 1, 1, {1, 1}}, Sm90Shape{128, 2, 2, 128, 1, 1, {1, 1}},
                                      Sm90Shape{128, 2, 1, 64, 1, 1, {1, 1}}, Sm90Shape{256, 2, 1, 64, 1, 1, {1, 1}},
                                      Sm90Shape{256, 2, 1, 128, 1, 1, {1, 1}}};
constexpr std::array kSm90WgmmaTokens{16, 32, 64, 128, 256};
// Blocks load x for each other where there are many tokens.
constexpr int kMulticastTokens = 128;

// Does a tile of so many tokens suit M: no more than there are, rounded up, and not so few that weights are decoded
// over and over?
bool suits(int tokens, std::int64_t m) { return (tokens == 8 || tokens < 2 * m) && (tokens >= m || tokens >= 64); }

// k whose sum has a factor of its own in kernel sm90, 0: none has.
int sum_group(const DequantMatmulSpec& spec) { return static_cast<int>(dequant_group(dequant_sm90_factors(spec))); }

// Two sets of sums, where groups have their own, and what they need beside them: more than a thread has registers. Four
// warpgroups have 112 to a thread; sums of 32 tokens by mma.sync need many beside them if a stage is long, and those of
// two waves by wgmma.
bool spills(const DequantMatmulSpec& spec, const DequantTiling& t) {
  if (sum_group(spec) == 0) return false;
  return (t.rows == 256 * t.waves && t.tokens * t.waves >= 64) || (!t.wgmma && t.tokens == 32 && t.depth > 128) ||
         (t.wgmma && t.waves > 1 && t.depth > 64);
}

void add_sm90(const DequantMatmulSpec& spec, const DequantTiling& tiling, std::vector<DequantTiling>& all) {
  if (spills(spec, tiling)) return;
  const DequantTiling filled = with_all_stages(spec, tiling);
  if (filled.stages >= 3) all.push_back(filled);
}

void add_sm90(const DequantMatmulSpec& spec, const GemmSize& size, const Sm90Shape& shape, bool wgmma,
              std::vector<DequantTiling>& all) {
  DequantTiling tiling{.wgmma = wgmma,
                       .tokens = shape.tokens,
                       .rows = 64 * shape.groups / shape.k_warps * shape.waves,
                       .depth = shape.depth,
                       .k_warps = shape.k_warps,
                       .waves = shape.waves,
                       .blocks = shape.blocks};
  // A part of fewer than two stages is mostly its beginning and its end.
  const auto fits = [&](int split) { return split == 1 || size.k >= std::int64_t{2} * shape.depth * split; };
  const auto [fewest, most] = shape.splits;
  tiling.split = 0;
  for (const int split : {fits(fewest) ? fewest : 1, most}) {
    if (!fits(split) || split == tiling.split) continue;
    tiling.split = split;
    add_sm90(spec, tiling, all);
    if (tiling.tokens < kMulticastTokens || split > 1 || size.n < 2 * tiling.rows) continue;
    tiling.multicast = 2;
    add_sm90(spec, tiling, all);
    tiling.multicast = 1;
  }
}

}  // namespace

std::vector<DequantTiling> dequant_sm90_tilings(const DequantMatmulSpec& spec, const GemmSize& size, bool wgmma_alone) {
  std::vector<DequantTiling> all;
  const auto add = [&](std::span<const Sm90Shape> shapes, bool wgmma) {
    for (const Sm90Shape& shape : shapes) {
      if (suits(shape.tokens, size.m)) add_sm90(spec, size, shape, wgmma, all);
    }
  };
  if (!wgmma_alone) add(kSm90MmaShapes, false);
  add(kSm90WgmmaShapes, true);
  return all;
}

std::vector<DequantTiling> dequant_sm90_tilings_like(DequantTiling tiling, const DequantMatmulSpec& spec,
                                                     const GemmSize& size) {
  std::vector<DequantTiling> all;
  for (const int tokens : kSm90WgmmaTokens) {
    for (const int blocks : {1, 2}) {
      tiling.tokens = tokens;
      tiling.blocks = blocks;
      if (suits(tokens, size.m)) add_sm90(spec, tiling, all);
    }
  }
  return all;
}

namespace {

// The longer of two times that overlap, and a little more where they are equal.
double longer(double a, double b) {
  const double most = std::max({a, b, 1e-3});
  return most * std::pow(std::pow(a / most, 6) + std::pow(b / most, 6), 1.0 / 6);
}

// Clusters that run at once, of one block to a multiprocessor: they do not cross the GPU's parts, which have 16 or 18.
int clusters_at_once(int multiprocessors, int blocks) {
  const int parts = std::max(1, multiprocessors / 16);
  const int whole = std::max(1, multiprocessors) / blocks;
  return std::max(1, blocks <= 2 ? whole : whole - parts / 4);
}

bool has_factors_of_codes(const DequantMatmulSpec& spec) {
  return dequant_sm90_factors(spec) == DequantFactors::mx32_codes;
}

// For each sum that has a factor of its own, of a code.
double sums_of_code(const DequantMatmulSpec& spec, const DequantTiling& t) {
  return sum_group(spec) == 0 ? 0 : static_cast<double>(t.tokens) / sum_group(spec);
}

const costs::DequantDecoding& decoding_of(const DequantMatmulSpec& spec) {
  constexpr const costs::DequantSm90Costs& kCosts = costs::kDequantSm90;
  return bits_of(spec.weight) == 8 ? kCosts.eight : bits_of(spec.weight) == 6 ? kCosts.six : kCosts.four;
}

// Of a code, decoded and multiplied, by so many warps.
double ns_of_mma(const DequantMatmulSpec& spec, const DequantTiling& t, double warps) {
  constexpr const costs::DequantSm90Costs& kCosts = costs::kDequantSm90;
  const bool has_factors = has_factors_of_codes(spec);
  const double alone = decoding_of(spec).mma_warp_ns + (has_factors ? kCosts.mx_mma_warp_ns : 0) +
                       kCosts.mma_sum_ns * sums_of_code(spec, t);
  return decoding_of(spec).mma_ns + (has_factors ? kCosts.mx_mma_ns : 0) + alone / warps;
}
double ns_of_wgmma(const DequantMatmulSpec& spec, const DequantTiling& t, double warps) {
  constexpr const costs::DequantSm90Costs& kCosts = costs::kDequantSm90;
  const bool has_factors = has_factors_of_codes(spec);
  const double alone = kCosts.wgmma_warp_ns + (has_factors ? kCosts.mx_wgmma_warp_ns : 0);
  return decoding_of(spec).wgmma_ns + (has_factors ? kCosts.mx_wgmma_ns : 0) + alone / warps +
         t.tokens / kCosts.wgmma_per_ns + kCosts.wgmma_sum_ns * sums_of_code(spec, t);
}

}  // namespace

double estimate_dequant_sm90(const DequantMatmulSpec& spec, const GemmSize& size, const DequantTiling& t,
                             int multiprocessors) {
  constexpr const costs::DequantSm90Costs& kCosts = costs::kDequantSm90;
  const int cluster = t.split * t.multicast;
  const double tiles_m = static_cast<double>(ceil_div<std::int64_t>(size.m, t.tokens));
  const double tiles =
      tiles_m * static_cast<double>(ceil_div<std::int64_t>(size.n, std::int64_t{t.rows} * t.multicast));
  const double room = clusters_at_once(multiprocessors, cluster) * t.blocks;
  const double rounds = std::ceil(tiles / room);
  const double at_once = std::min<double>(t.blocks, std::ceil(tiles / rounds * cluster / std::max(1, multiprocessors)));
  // Of a stage.
  const double stages = std::ceil(static_cast<double>(ceil_div<std::int64_t>(size.k, t.depth)) / t.split);
  const double weights = static_cast<double>(t.rows) * t.depth;
  const double code_bytes = weights * bits_of(spec.weight) / 8;
  const double bytes = code_bytes + 2.0 * t.tokens * t.depth / t.multicast;
  const double reading = std::max(code_bytes / kCosts.code_bytes_per_ns, bytes / kCosts.bytes_per_ns);
  const double warps = 4.0 * t.rows / (64 * t.waves) * t.k_warps * at_once;
  const double of_code = t.wgmma ? ns_of_wgmma(spec, t, warps) : ns_of_mma(spec, t, warps);
  const double steps = t.depth / 32.0 / t.k_warps * t.waves;
  const double step = t.wgmma ? kCosts.wgmma_step_ns * t.tokens / 64 : kCosts.mma_step_ns * (16 + t.tokens) / 32;
  const double waiting = kCosts.stage_ns + (t.multicast > 1 ? kCosts.multicast_ns : 0) + step * steps;
  const double copying = has_factors_of_codes(spec) ? kCosts.mx_row_ns * t.rows * at_once : 0;
  const double stage = std::max({reading * at_once, weights * at_once * of_code, waiting, copying});
  // Of a tile, and of the first.
  const double writing = kCosts.write_ns * t.rows * t.tokens / 1024;
  const double exchange =
      (t.split * t.k_warps == 1 ? 0 : kCosts.exchange_ns + writing) + (t.k_warps > 1 ? kCosts.k_warps_ns : 0);
  const double beginning = kCosts.beginning * std::max(reading, waiting);
  const double ns = rounds * (stages * stage + writing + exchange + kCosts.tile_ns) + beginning;
  const double all_bytes = static_cast<double>(size.n) * static_cast<double>(size.k) * bits_of(spec.weight) / 8;
  return kCosts.start_us + longer(ns * 1e-3, all_bytes / kCosts.memory_per_us);
}

}  // namespace ingot
