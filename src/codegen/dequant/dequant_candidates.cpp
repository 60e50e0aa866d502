// batch_invariant: a row's result depends on the order of its sums, which the tiling fixes, except for its number of
// tokens. Everything else about the tiling is therefore chosen for kInvariantTokens tokens, whatever M is; of sm90's
// two instructions wgmma is taken, which has tiles for many tokens too.
#include "ingot/codegen/dequant/dequant_candidates.h"

#include <algorithm>
#include <utility>

#include <array>
#include <cmath>
#include <cstdint>
#include "ingot/codegen/dequant/dequant_sm90.h"
#include "ingot/codegen/dequant/dequant_spec.h"
#include "ingot/codegen/types/matmul_size.h"

namespace ingot {
namespace {

// Kernel mma's estimate: rounds of blocks, each as long as its stages. A stage takes as long as its instructions or as
// the memory's latency, whichever is longer. The whole takes at least the time to read the weight. The times, on an
// H200, are guesses from the instructions that it issues; bench_weight_only --every measures every tiling.
struct DequantMmaCosts {
  double start_us = 3.0;
  double bytes_per_us = 3.9e6;    // memory bandwidth, for the weight
  double x_bytes_per_us = 5.5e6;  // L2 bandwidth, for x
  double codes_ns = 22;           // loads and decoding of a warp's 64 k, on a multiprocessor that has enough warps
  double tokens_ns = 7;           // likewise, for 8 tokens
  double group_ns = 3;            // likewise, for each group's scale_inv and 8 tokens
  double stage_ns = 480;          // least time of a stage: two of them hide the memory's latency
  double tile_ns = 1500;          // time of a tile besides its stages
  double split_us = 2.5;          // time to add up the sums of several blocks
  double part_bytes_per_us = 2e6;
};
constexpr DequantMmaCosts kDequantMma{};

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

std::vector<DequantTiling> dequant_mma_tilings(const MatmulSize& size, bool experts) {
  std::vector<DequantTiling> all;
  for (const MmaShape& shape : kMmaShapes) {
    const int fitting = fitting_tokens(size.m, most_tokens(shape));
    for (const int tokens : kMmaTokens) {
      if (tokens > fitting || 2 * tokens < fitting) continue;
      for (const int split : kMmaSplits) {
        // In a part of fewer than two stages, starting and finishing take most of the time.
        if (split != 1 && experts) continue;
        if (split != 1 && divided_up(size.k, 64 * shape.k_warps) < 2 * split) continue;
        all.push_back(mma_tiling(shape, tokens, split));
      }
    }
  }
  return all;
}

std::vector<DequantTiling> dequant_mma_tilings_like(const DequantTiling& tiling, const MatmulSize& size) {
  std::vector<DequantTiling> all = dequant_mma_tilings(size, false);
  std::erase_if(all, [&](DequantTiling each) {
    each.tokens = tiling.tokens;
    return each != tiling;
  });
  return all;
}

double estimate_dequant_mma(const DequantMatmulSpec& spec, const MatmulSize& size, const DequantTiling& t,
                            int multiprocessors) {
  constexpr const DequantMmaCosts& kCosts = kDequantMma;
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

constexpr std::int64_t kInvariantTokens = 16;
constexpr std::size_t kBestGuesses = 24;  // tilings of each kernel that are measured

bool runs_there(DequantKernel kernel, const DequantMatmulSpec& spec, const MatmulDevice& device) {
  if (kernel == DequantKernel::sm90) {
    return is_packed(spec.layout) && device.target == target_for(9, 0);
  }
  return device.target.major >= 8;
}

DequantMatmulSpec with(DequantMatmulSpec spec, const DequantTiling& tiling) {
  spec.tiling = tiling;
  return spec;
}

DequantTiling cheapest(const DequantMatmulSpec& spec, const MatmulSize& size, const MatmulDevice& device,
                       const std::vector<DequantTiling>& all) {
  const DequantTiling* best = nullptr;
  double least = 0;
  for (const DequantTiling& tiling : all) {
    const double us = estimate_dequant(spec, size, tiling, device);
    if (best != nullptr && us >= least) continue;
    best = &tiling;
    least = us;
  }
  return *best;
}

}  // namespace

// Of an expert's rows, which vary around their mean, a tile should hold those of most experts: another tile of few rows
// decodes the weight again.
MatmulSize size_of_experts(const MatmulSize& all, std::int64_t experts, std::optional<std::int64_t> capacity) {
  constexpr std::int64_t kMostExpected = 64;
  const std::int64_t with_rows = std::max<std::int64_t>(1, std::min(experts, all.m));
  const std::int64_t mean = divided_up(all.m, with_rows);
  const auto likely = mean + static_cast<std::int64_t>(std::sqrt(static_cast<double>(mean)));
  const std::int64_t rows = capacity               ? std::min(*capacity, kMostExpected)
                            : mean < kMostExpected ? std::min(likely, kMostExpected)
                                                   : mean;
  return {.m = std::max<std::int64_t>(rows, 1), .n = all.n * with_rows, .k = all.k};
}

std::vector<DequantTiling> dequant_tilings(const DequantMatmulSpec& spec, const MatmulSize& size,
                                           const MatmulDevice& device) {
  if (spec.tiling) return {*spec.tiling};
  const bool is_mma = spec.kernel == DequantKernel::mma;
  const auto offered = [&](const MatmulSize& sizes) {
    return is_mma ? dequant_mma_tilings(sizes, spec.experts)
                  : dequant_sm90_tilings(spec, sizes, spec.batch_invariant, device.multiprocessors);
  };
  if (!spec.batch_invariant) return offered(size);
  const MatmulSize fixed{.m = kInvariantTokens, .n = size.n, .k = size.k};
  const std::vector<DequantTiling> of_fixed = offered(fixed);
  if (of_fixed.empty()) return {};
  const DequantTiling chosen = cheapest(spec, fixed, device, of_fixed);
  const std::vector<DequantTiling> all =
      is_mma ? dequant_mma_tilings_like(chosen, size) : dequant_sm90_tilings_like(chosen, spec, size);
  return all.empty() ? std::vector{chosen} : all;
}

std::vector<DequantMatmulSpec> dequant_kernels(const DequantMatmulSpec& spec, const MatmulDevice& device) {
  if (spec.kernel != DequantKernel::automatic) return {spec};
  std::vector<DequantMatmulSpec> all;
  for (const DequantKernel kernel : {DequantKernel::sm90, DequantKernel::mma}) {
    if (!runs_there(kernel, spec, device)) continue;
    all.push_back(spec);
    all.back().kernel = kernel;
  }
  return all;
}

double estimate_dequant(const DequantMatmulSpec& spec, const MatmulSize& size, const DequantTiling& tiling,
                        const MatmulDevice& device) {
  return spec.kernel == DequantKernel::mma ? estimate_dequant_mma(spec, size, tiling, device.multiprocessors)
                                           : estimate_dequant_sm90(spec, size, tiling, device.multiprocessors);
}

std::vector<DequantMatmulSpec> dequant_order(const DequantMatmulSpec& spec, const MatmulSize& size,
                                             const MatmulDevice& device) {
  std::vector<DequantMatmulSpec> order;
  for (const DequantMatmulSpec& named : dequant_kernels(spec, device)) {
    const std::vector<DequantTiling> all = dequant_tilings(named, size, device);
    if (!all.empty()) order.push_back(with(named, cheapest(named, size, device, all)));
  }
  return order;
}

std::vector<DequantMatmulSpec> dequant_candidates(const DequantMatmulSpec& spec, const MatmulSize& size,
                                                  const MatmulDevice& device) {
  std::vector<DequantMatmulSpec> all;
  for (const DequantMatmulSpec& named : dequant_kernels(spec, device)) {
    std::vector<std::pair<double, DequantTiling>> timed;
    for (const DequantTiling& tiling : dequant_tilings(named, size, device)) {
      timed.emplace_back(estimate_dequant(named, size, tiling, device), tiling);
    }
    std::ranges::stable_sort(timed, {}, &std::pair<double, DequantTiling>::first);
    for (std::size_t i = 0; i < timed.size() && i < kBestGuesses; ++i) all.push_back(with(named, timed[i].second));
  }
  return all;
}

}  // namespace ingot
