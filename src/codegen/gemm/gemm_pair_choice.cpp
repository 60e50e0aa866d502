#include "ingot/codegen/gemm/gemm_pair_choice.h"

#include <algorithm>
#include <cmath>

#include "ingot/codegen/gemm/gemm_estimate.h"
#include "ingot/codegen/types/divided_up.h"

namespace ingot {
namespace {

// One launch is chosen if its estimated time is at most this share of that of two.
constexpr double kGain = 0.95;
// Tiles that a block may have. With more there is little to gain (bench/results/gradients_h200.json: 10 % in bf16 and
// 6 % in FP8 at four), and small tiles are slower than their estimates, because half of the multiprocessors share less
// of the operands in the L2.
constexpr double kMostRounds = 4;
constexpr double kMostRoundsOfSmallTiles = 2.5;
constexpr int kSmallTile = 128 * 128;
// In a round that is not full, at least this share of blocks must have work. Estimates of 16 bits leave out cuBLASLt,
// whose further tilings fit such sizes (1536 cubed on an H200: 26.8 us in two launches, 28.8 in one that is 0.73 full).
constexpr double kLeastFullOf16Bits = 0.75;

// The fewest products from which a pair with an FP8 GEMM is one launch. Smaller layers are faster with a side stream,
// which overlaps all of grad_weight's GEMM with grad_input's and what follows it (docs/notes/gemm.md); and the results
// of a layer with a side stream are those of one without, to the bit.
constexpr double kLeastProductsInFp8 = 5e8;

// The estimated time in a separate launch.
double estimate_alone(const GemmCall& call, int multiprocessors) {
  const GemmTiling tiling = choose_sm90_tiling(call.spec, call.size, multiprocessors);
  const double sm90 = estimate_gemm(call.spec, call.size, tiling, multiprocessors);
  if (!is_fp8(call.spec.a)) return sm90;  // cuBLASLt is as fast
  return std::min(sm90, estimate_cublaslt(call.spec, call.size, multiprocessors));
}

bool may_pair(const GemmCall& call) {
  const bool is_empty = call.size.m == 0 || call.size.n == 0 || call.size.k == 0;
  const bool is_named = call.spec.kernel == GemmKernel::sm90 && call.spec.tiling;
  return !is_empty && (is_named || call.spec.kernel == GemmKernel::automatic) && sm90_multiplies(call.spec);
}

bool has_good_rounds(const GemmCall& call, const GemmTiling& tiling, int multiprocessors) {
  const double tiles =
      static_cast<double>(divided_up(call.size.m, tiling.m)) * static_cast<double>(divided_up(call.size.n, tiling.n));
  const double rounds = tiles / (multiprocessors / 2);
  if (rounds > (tiling.m * tiling.n < kSmallTile ? kMostRoundsOfSmallTiles : kMostRounds)) return false;
  return is_fp8(call.spec.a) || rounds <= 1 || rounds / std::ceil(rounds) >= kLeastFullOf16Bits;
}

double estimate_half(const GemmSpec& half, const MatmulSize& size, int multiprocessors) {
  return estimate_gemm(half, size, *half.tiling, multiprocessors / 2);
}

}  // namespace

std::vector<GemmSpec> pair_halves(const GemmSpec& spec) {
  std::vector<GemmSpec> halves;
  for (const GemmTiling& tiling : gemm_tilings(spec)) {
    GemmSpec half = spec;
    half.kernel = GemmKernel::sm90;
    half.tiling = tiling;
    if (pair_fault(half).empty()) halves.push_back(half);
  }
  return halves;
}

std::optional<GemmSpec> fastest_half(const GemmCall& call, int multiprocessors) {
  if (!may_pair(call)) return std::nullopt;
  std::optional<GemmSpec> fastest;
  double least = 0;
  for (const GemmSpec& half : pair_halves(call.spec)) {
    if (!call.spec.tiling && !has_good_rounds(call, *half.tiling, multiprocessors)) continue;
    const double us = estimate_half(half, call.size, multiprocessors);
    if (fastest && us >= least) continue;
    fastest = half;
    least = us;
  }
  return fastest;
}

std::optional<GemmPairSpec> choose_gemm_pair(const GemmCall& first, const GemmCall& second,
                                             const MatmulDevice& device) {
  if (device.target != target_for(9, 0) || device.multiprocessors < 2) return std::nullopt;
  const std::optional<GemmSpec> a = fastest_half(first, device.multiprocessors);
  const std::optional<GemmSpec> b = fastest_half(second, device.multiprocessors);
  if (!a || !b) return std::nullopt;
  const GemmPairSpec pair{.first = *a, .second = *b};
  if (first.spec.tiling && second.spec.tiling) return pair;
  if (first.spec.tiling || second.spec.tiling) return std::nullopt;
  const bool has_fp8 = is_fp8(first.spec.a) || is_fp8(second.spec.a);
  if (has_fp8 && products_of(first.size) < kLeastProductsInFp8) return std::nullopt;
  const double traffic = estimate_traffic(first.spec, first.size) + estimate_traffic(second.spec, second.size);
  const double together = std::max({estimate_half(*a, first.size, device.multiprocessors),
                                    estimate_half(*b, second.size, device.multiprocessors), traffic});
  const double apart = estimate_alone(first, device.multiprocessors) + estimate_alone(second, device.multiprocessors);
  return together < kGain * apart ? std::optional(pair) : std::nullopt;
}

}  // namespace ingot
