#include "ingot/codegen/gemm/gemm_candidates.h"
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>
#include "ingot/codegen/gemm/gemm_estimate.h"
#include "ingot/codegen/types/matmul_size.h"

namespace ingot {
namespace {

// The best guesses are measured, and every tiling whose estimate is not much slower than the first. For 556 of the 561
// GEMMs that the cost model was first fitted to, the fastest tiling of that time was among them; for the other 5 it was
// up to 7 % faster.
constexpr std::size_t kBestGuesses = 6;
constexpr double kPlausible = 1.4;

GemmSpec with_kernel(GemmSpec spec, GemmKernel kernel) {
  spec.kernel = kernel;
  return spec;
}

GemmSpec with_tiling(GemmSpec spec, GemmKernel kernel, const GemmTiling& tiling) {
  spec.kernel = kernel;
  spec.tiling = tiling;
  return spec;
}

bool k_major(const GemmSpec& spec) { return spec.layout_a == Layout::k_major && spec.layout_b == Layout::k_major; }

// Is there nothing that kernel sm90 would have to stage, if rows start at multiples of 16 bytes?
bool sm90_reads(const GemmSpec& spec) { return !is_fp8(spec.a) || k_major(spec); }

bool cublaslt_may_take(const GemmSpec& spec, Target target) {
  if (has_group_scale_inv(spec) && target != target_for(9, 0)) return false;
  return is_fp8(spec.a) ? is_ocp(spec.a) && is_ocp(spec.b) && k_major(spec) : spec.a == spec.b;
}

// It may have to stage its operands.
bool sm90_may_take(const GemmSpec& spec, Target target) { return sm90_multiplies(spec) && target == target_for(9, 0); }

bool mma_may_take(const GemmSpec& spec, Target target) { return spec.a != Dtype::f32 && target.major >= 8; }

// gemm_sm90 reads only rows of codes along k: FP8 operands stored otherwise are staged.
GemmSpec on_sm90(GemmSpec spec, const GemmTiling& tiling) {
  spec = with_tiling(spec, GemmKernel::sm90, tiling);
  if (!is_fp8(spec.a)) return spec;
  spec.staged_a = spec.staged_a || spec.layout_a == Layout::mn_major;
  spec.staged_b = spec.staged_b || spec.layout_b == Layout::mn_major;
  return spec;
}

// The spec for a named kernel, with everything chosen that it left open.
GemmSpec settled(const GemmCall& call, GemmKernel kernel, int multiprocessors) {
  if (kernel == GemmKernel::sm90) return on_sm90(call.spec, choose_sm90_tiling(call.spec, call.size, multiprocessors));
  if (kernel == GemmKernel::mma) {
    return with_tiling(call.spec, kernel, choose_mma_tiling(call.spec, call.size, multiprocessors));
  }
  return with_kernel(call.spec, kernel);
}

// The cost model's choice first.
std::vector<GemmSpec> tilings(const GemmCall& call, int multiprocessors) {
  std::vector<std::pair<double, GemmTiling>> timed;
  for (const GemmTiling& tiling : gemm_tilings(call.spec)) {
    timed.emplace_back(estimate_gemm(call.spec, call.size, tiling, multiprocessors), tiling);
  }
  std::ranges::stable_sort(timed, {}, &std::pair<double, GemmTiling>::first);
  std::vector<GemmSpec> specs;
  for (const auto& [us, tiling] : timed) {
    if (specs.size() >= kBestGuesses && us > kPlausible * timed.front().first) break;
    specs.push_back(on_sm90(call.spec, tiling));
  }
  return specs;
}

// For kernel sm90: adds variants of the spec that stage one or both operands, where staging is expected to pay.
void add_staged(std::vector<GemmSpec>& order, const GemmSpec& spec, const GemmCall& call, int multiprocessors) {
  for (const auto& [a, b] : {std::pair{true, false}, std::pair{false, true}, std::pair{true, true}}) {
    GemmSpec staged = spec;
    staged.staged_a = a;
    staged.staged_b = b;
    const bool needed = (spec.staged_a && !a) || (spec.staged_b && !b);
    if (needed || staged == spec || !prefers_staging(staged, call.size, multiprocessors)) continue;
    order.push_back(staged);
  }
}

}  // namespace

std::vector<GemmSpec> gemm_order(const GemmCall& call, const MatmulDevice& device, bool scale_inv_as_read) {
  if (call.spec.kernel != GemmKernel::automatic) return {settled(call, call.spec.kernel, device.multiprocessors)};
  std::vector<GemmSpec> order;
  const auto add = [&](GemmKernel kernel) { order.push_back(settled(call, kernel, device.multiprocessors)); };
  if (cublaslt_may_take(call.spec, device.target)) add(GemmKernel::cublaslt);
  if (sm90_may_take(call.spec, device.target)) {
    const GemmSpec sm90 = settled(call, GemmKernel::sm90, device.multiprocessors);
    if (sm90_reads(call.spec) || prefers_staging(sm90, call.size, device.multiprocessors)) order.push_back(sm90);
    if (order.size() == 2 && device.compiles &&
        prefers_sm90(sm90, call.size, device.multiprocessors, scale_inv_as_read)) {
      std::swap(order[0], order[1]);
    }
    if (is_fp8(call.spec.a)) add_staged(order, sm90, call, device.multiprocessors);
  }
  if (mma_may_take(call.spec, device.target)) add(GemmKernel::mma);
  add(GemmKernel::simt);
  return order;
}

std::vector<GemmSpec> gemm_candidates(const GemmCall& call, const MatmulDevice& device) {
  const GemmCall open{.spec = without_kernel(call.spec), .size = call.size};
  std::vector<GemmSpec> all{gemm_order(open, device).front()};
  const auto add = [&](const GemmSpec& spec) {
    if (spec != all.front()) all.push_back(spec);
  };
  const auto add_cublaslt = [&](int algorithm) {
    GemmSpec spec = with_kernel(open.spec, GemmKernel::cublaslt);
    spec.algorithm = algorithm;
    add(spec);
  };
  const bool cublaslt = cublaslt_may_take(open.spec, device.target);
  if (cublaslt) add_cublaslt(0);
  if (sm90_may_take(open.spec, device.target)) {
    for (const GemmSpec& spec : tilings(open, device.multiprocessors)) add(spec);
  }
  for (int i = 1; cublaslt && i < kCublasltAlgorithms; ++i) add_cublaslt(i);
  if (open.spec.a == Dtype::f32) {
    add(with_kernel(open.spec, GemmKernel::simt));
  } else {
    for (const GemmTiling& tiling : kMmaTilings) add(with_tiling(open.spec, GemmKernel::mma, tiling));
  }
  return all;
}

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
