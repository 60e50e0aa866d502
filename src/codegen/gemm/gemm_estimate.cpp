// The estimate: rounds of tiles, each as long as its steps along K, plus the time to write a tile where nothing hides
// it; at least the time of the memory traffic, which a last round with few tiles uses poorly. Stream-K has fractions of
// rounds, and pays for the partial sums that blocks pass to each other.
#include "ingot/codegen/gemm/gemm_estimate.h"
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <span>
#include <utility>
#include "gemm/gemm_sm90_split.cuh"
#include "ingot/codegen/gemm/gemm_spec.h"
#include "ingot/codegen/types/matmul_size.h"

namespace ingot {
namespace {

// Constants: how long gemm_sm90's tilings, and cuBLASLt's first choice, take on an H200. They were fitted to the times
// of all tilings on 561 GEMMs, most of random sizes (bench_choice --every), so that the tiling with the lowest estimate
// is nearly as fast as the fastest one. None of these GEMMs is in the list by which bench_choice judges. Fitted to
// three quarters of the GEMMs, the model chose tilings within 2.3 % of the fastest, on average, for the last quarter.
// The figures describe the model: those on which no choice depends need not be the hardware's.

struct TilingCost {
  GemmTiling tiling;
  double step_ns;            // time of a step of 128 along K
  double tile_ns;            // time of a tile besides its steps
  double askew;              // factor on the steps where rows do not start at multiples of 64 bytes
  double by_groups = 1;      // factor on the steps of 1x128 by 1x128
  bool light_alone = false;  // for light epilogues (is_light()) only
};

// For one kind of accumulation and scale_inv.
struct Sm90Costs {
  double start_us;
  double bytes_per_us;  // memory bandwidth
  double idle;          // share of the bandwidth that is lost to idle blocks in the last round
  double few;           // exponent on the share of busy blocks, where each has one tile at most
  double write_ns;      // time to write two bytes of output
  double alone;         // share by which a step shortens as other multiprocessors are idle
  std::span<const TilingCost> tilings;
};

struct CublasltCosts {
  double start_us;
  double bytes_per_us;
  std::array<double, 4> step_ns;  // for tiles of 128x256, 128x128, 64x128 and 64x64
  double tile_ns;
  double askew;
  double copy_us = 0;  // of scale_inv into the order in which cuBLASLt reads it
};

namespace costs {

constexpr GemmTiling stream_k(int m, int n, int stages) { return {.m = m, .n = n, .stages = stages, .stream_k = true}; }

// 192 sums in a thread leave few registers for an epilogue, as do three warpgroups: with more than a light one, these
// tilings spill (`ingot show`; the compile matrix watches).
constexpr TilingCost light_alone(TilingCost cost) {
  cost.light_alone = true;
  return cost;
}

// The costs of tiles of 160 columns are between those of the neighbours and are not fitted.
constexpr std::array kFastTilings{TilingCost{{128, 128, 2, 1, 6, true}, 324, 4340, 1.35},
                                  TilingCost{{128, 128, 1, 1, 6, true}, 375, 1140, 1.24},
                                  TilingCost{{128, 256, 2, 1, 4, false}, 623, 5550, 1.15},
                                  TilingCost{{128, 256, 1, 1, 4, false}, 799, 1820, 1.11},
                                  TilingCost{{64, 128, 1, 1, 8, true}, 243, 0, 1.65},
                                  TilingCost{{128, 64, 1, 1, 8, true}, 218, 1150, 1.51},
                                  TilingCost{{64, 64, 1, 1, 12, true}, 151, 0, 1.89},
                                  TilingCost{{192, 64, 1, 2, 6, true}, 296, 1680, 1.35},
                                  TilingCost{stream_k(64, 128, 8), 476, 2210, 1.09},
                                  TilingCost{stream_k(128, 128, 6), 501, 3050, 1.01},
                                  TilingCost{stream_k(256, 128, 4), 947, 2920, 1.15},
                                  light_alone({{192, 128, 1, 2, 5, true}, 516, 1850, 1.11}),
                                  light_alone({{128, 192, 2, 1, 5, true}, 494, 3210, 1.09}),
                                  TilingCost{{128, 160, 1, 1, 5, true}, 432, 2000, 1.24},
                                  TilingCost{{128, 160, 2, 1, 5, true}, 409, 3775, 1.22},
                                  TilingCost{{256, 160, 1, 1, 4, false}, 800, 2900, 1.15}};
constexpr std::array kAccurateTilings{
    TilingCost{{128, 192, 2, 1, 5, false}, 568, 871, 1.03}, TilingCost{{128, 192, 1, 1, 5, false}, 477, 891, 1.42},
    TilingCost{{128, 128, 1, 1, 6, false}, 326, 573, 1.48}, TilingCost{{128, 128, 2, 1, 6, false}, 376, 597, 1.11},
    TilingCost{{256, 128, 1, 1, 4, false}, 825, 200, 1.12}, TilingCost{{256, 128, 1, 2, 4, false}, 692, 7730, 1},
    TilingCost{{64, 128, 1, 1, 8, true}, 310, 994, 1.42},   TilingCost{{64, 64, 1, 1, 12, true}, 226, 269, 1.26},
    TilingCost{stream_k(64, 128, 8), 334, 2970, 1.18},      TilingCost{stream_k(128, 128, 6), 536, 945, 1.09},
    TilingCost{stream_k(64, 256, 5), 1060, 713, 1},         light_alone({stream_k(256, 128, 4), 1000, 1310, 1.03}),
    TilingCost{{128, 160, 1, 1, 5, false}, 401, 730, 1.45}, TilingCost{{128, 160, 2, 1, 5, false}, 470, 730, 1.1}};
// 1x128 by 128x128. The steps of whole tiles are from eight sizes (gemm_factors_h200.json); what else there is, from
// the 561 GEMMs. Rows askew were not measured: their ratios are those of accurate accumulation, and 192x128 has that of
// the other tilings above 128x128 (1.48, as 128x128 has, made it 12 % slower than it can be where K is 3616). 192x128,
// 128x256 with blocks and groups of 128x128 and 256x128 are from ten sizes (gemm_blocks_variants_h200.json,
// gemm_blocks_tiles_h200.json), at which the fastest one is chosen. 128x256 with groups was measured later: its ratio
// is 128x128's without the copy engine, and at 2048 cubed it is the fastest.
constexpr std::array kGroupedTilings{TilingCost{{128, 128, 1, 1, 6, false}, 447, 422, 1.48, 1.363},
                                     TilingCost{{128, 128, 2, 1, 6, false}, 455, 543, 1.11, 1.43},
                                     TilingCost{{256, 128, 1, 2, 4, false}, 955, 907, 1, 1.311},
                                     TilingCost{{256, 128, 1, 1, 4, false}, 965, 500, 1.12, 1.291},
                                     TilingCost{{64, 128, 1, 1, 8, true}, 373, 0, 1.42, 1.18},
                                     TilingCost{{64, 64, 1, 1, 12, true}, 250, 87.7, 1.26, 1.12},
                                     TilingCost{stream_k(64, 128, 8), 421, 2440, 1.18, 1.13},
                                     TilingCost{stream_k(128, 128, 6), 682, 1670, 1.09, 1.17},
                                     TilingCost{stream_k(64, 256, 5), 635, 3820, 1, 1.28},
                                     light_alone({{128, 256, 1, 1, 4, false}, 862, 422, 1.12, 1.45}),
                                     light_alone({{192, 128, 1, 1, 4, false}, 640, 422, 1.12, 1.21})};

constexpr Sm90Costs kFast{.start_us = 1.67,
                          .bytes_per_us = 4.69e6,
                          .idle = 0.57,
                          .few = 0.811,
                          .write_ns = 0.0115,
                          .alone = 0.068,
                          .tilings = kFastTilings};
constexpr Sm90Costs kAccurate{.start_us = 0.967,
                              .bytes_per_us = 3.89e6,
                              .idle = 0.749,
                              .few = 0.729,
                              .write_ns = 0.0782,
                              .alone = 0,
                              .tilings = kAccurateTilings};
constexpr Sm90Costs kGrouped{.start_us = 2.26,
                             .bytes_per_us = 6.96e6,
                             .idle = 0.283,
                             .few = 0.935,
                             .write_ns = 0.0309,
                             .alone = 0.136,
                             .tilings = kGroupedTilings};

constexpr CublasltCosts kCublasltFast{
    .start_us = 2.93, .bytes_per_us = 4.49e6, .step_ns = {1300, 792, 236, 80.8}, .tile_ns = 276, .askew = 1.17};
constexpr CublasltCosts kCublasltFastRows{
    .start_us = 2.78, .bytes_per_us = 4.66e6, .step_ns = {705, 376, 340, 274}, .tile_ns = 2270, .askew = 0.93};
constexpr CublasltCosts kCublasltAccurate{
    .start_us = 3.08, .bytes_per_us = 4.9e6, .step_ns = {686, 804, 219, 70.5}, .tile_ns = 1320, .askew = 1.22};
// A tenth above the fit, which moves no choice of the GEMMs that it was made for: gemm_sm90 was the faster one, or
// equal, in all of these 73, and in a layer of few tokens where the fit had them equal, by 15 %.
constexpr CublasltCosts kCublasltAccurateRows{
    .start_us = 2.44, .bytes_per_us = 3.89e6, .step_ns = {1660, 432, 497, 306}, .tile_ns = 1860, .askew = 1.32};

// For 1x128 groups by 128x128 blocks, and by 1x128 groups. Not fitted to single times: set so that the choice between
// them and kGrouped's estimates costs little at the sizes that were measured on an H200 (docs/notes/gemm.md).
constexpr CublasltCosts kCublasltBlocks{.start_us = 3.5,
                                        .bytes_per_us = 4.5e6,
                                        .step_ns = {905, 452, 320, 230},
                                        .tile_ns = 100,
                                        .askew = 1.3,
                                        .copy_us = 7.5};
constexpr CublasltCosts kCublasltGroups{.start_us = 4.5,
                                        .bytes_per_us = 4.5e6,
                                        .step_ns = {1030, 515, 440, 320},
                                        .tile_ns = 100,
                                        .askew = 1.3,
                                        .copy_us = 9.5};
// Multiplies gemm_sm90's time where a's scale_inv are stored by group instead of row by row: a load of several rows'
// scale_inv has fewer sectors then, or the copy engine does it.
constexpr double kReadByGroup = 0.90;

}  // namespace costs

// The tilings of a list of costs, without them, in its order: those that `keeps` holds for.
template <const auto& kCosts, class Keeps>
constexpr auto tilings_of(Keeps) {
  constexpr Keeps kKeeps{};
  std::array<GemmTiling, static_cast<std::size_t>(std::ranges::count_if(kCosts, kKeeps))> tilings{};
  std::size_t next = 0;
  for (const TilingCost& cost : kCosts) {
    if (kKeeps(cost)) tilings[next++] = cost.tiling;
  }
  return tilings;
}

constexpr std::int64_t kStep = 128;     // bytes along K
constexpr std::int64_t kStraight = 64;  // bytes; loads take longer where rows do not start at multiples
constexpr double kLeastDrawn = 0.02;    // share of the memory's bandwidth
constexpr double kStagingUs = 2.0;      // for one more kernel before the GEMM
constexpr double kStagedPerUs = 4.0e6;  // bytes
constexpr double kMmaStartUs = 2.5;
constexpr double kMmaPerUs = 220e6;  // operations of gemm_mma, wherever rows start

double rounded_up(std::int64_t a, std::int64_t b) { return static_cast<double>(divided_up(a, b)); }

double steps_of(const GemmSpec& spec, const MatmulSize& size) { return rounded_up(size.k * size_of(spec.a), kStep); }

// The length of a row stands for its pitch; staged rows are padded.
bool is_straight(const GemmSpec& spec, const MatmulSize& size) {
  if (is_fp8(spec.a)) return size.k % kStraight == 0 || (spec.staged_a && spec.staged_b);
  const auto straight = [&](Layout layout, std::int64_t rows) {
    return (layout == Layout::k_major ? size.k : rows) * size_of(spec.a) % kStraight == 0;
  };
  return straight(spec.layout_a, size.m) && straight(spec.layout_b, size.n);
}

// Does the epilogue need at most the registers of one further matrix or output?
bool is_light(const GemmSpec& spec) {
  const GemmEpilogue& epilogue = spec.epilogue;
  const std::int64_t words = size_of(epilogue_dtype(spec)) / 2;
  std::int64_t held =
      (epilogue.c ? size_of(*epilogue.c) / 2 : 0) + (epilogue.preactivation ? 1 : 0) + (epilogue.amax ? 1 : 0);
  for (const PointwiseInput& input : epilogue.pointwise.inputs()) {
    held += input.kind == PointwiseInput::Kind::matrix ? words : 1;
  }
  return held <= 1 && !is_fp8(spec.out);
}

constexpr bool is_whole(const TilingCost& cost) { return cost.tiling.n % 64 == 0; }

// Not all operands and outputs can have tiles of 160 columns, which are not whole.
template <const auto& kCosts>
std::span<const GemmTiling> tilings_for(const GemmSpec& spec) {
  static constexpr auto kAll = tilings_of<kCosts>([](const TilingCost&) { return true; });
  static constexpr auto kWhole = tilings_of<kCosts>([](const TilingCost& cost) { return is_whole(cost); });
  static constexpr auto kHeavy =
      tilings_of<kCosts>([](const TilingCost& cost) { return is_whole(cost) && !cost.light_alone; });
  if (!is_light(spec)) return kHeavy;
  if (size_of(spec.out) != 2 || spec.layout_b == Layout::mn_major) return kWhole;
  return kAll;
}

// How tiles are distributed over multiprocessors, or over the clusters that fit.
struct Rounds {
  double count;  // tiles that one block computes one after the other
  double busy;   // share of blocks that have work, over the whole time
  bool cut_along_k;
};

// Stream-K as in templates/gemm/stream_k.cuh.
Rounds rounds_of(const GemmTiling& t, double tiles, double steps, double room) {
  const double rounds = std::max(1.0, std::ceil(tiles / room));
  const Rounds whole{.count = rounds, .busy = tiles / (rounds * room), .cut_along_k = false};
  if (!t.stream_k) return whole;
  const double units = std::max(1.0, steps - kSm90Spare);
  const double blocks = estimate_stream_k_blocks(tiles, units, room);
  if (std::floor(tiles / blocks) * blocks == tiles) return whole;
  return {.count = tiles / blocks, .busy = blocks / room, .cut_along_k = true};
}

// bf16 and f16 have the costs of FP8's fast sums: a step of as many bytes has as many instructions, which take as long.
const Sm90Costs& costs_of(const GemmSpec& spec) {
  if (has_group_scale_inv(spec)) return costs::kGrouped;
  return sums_in_tensor_cores(spec) ? costs::kFast : costs::kAccurate;
}

// A tiling that was not measured gets the costs of the one nearest in size, in proportion.
TilingCost cost_of(const Sm90Costs& costs, const GemmTiling& t) {
  const auto distance = [&](const TilingCost& cost) {
    const GemmTiling& other = cost.tiling;
    const int apart = std::abs(t.m * t.n - other.m * other.n) + std::abs(t.m - other.m);
    return 4 * apart + 2 * (t.stream_k != other.stream_k) + (t.cluster_m != other.cluster_m) +
           (t.cluster_n != other.cluster_n) + (t.pingpong != other.pingpong);
  };
  TilingCost cost = *std::ranges::min_element(costs.tilings, {}, distance);
  const double larger = static_cast<double>(t.m) * t.n / (cost.tiling.m * cost.tiling.n);
  cost.step_ns *= larger;
  cost.tile_ns *= larger;
  return cost;
}

const CublasltCosts& cublaslt_costs(const GemmSpec& spec) {
  if (has_group_scale_inv(spec)) return spec.scale_b == kBlocks ? costs::kCublasltBlocks : costs::kCublasltGroups;
  const bool rows = spec.scale_a == kRowwise || spec.scale_b == kRowwise;
  if (spec.fast_accumulation) return rows ? costs::kCublasltFastRows : costs::kCublasltFast;
  return rows ? costs::kCublasltAccurateRows : costs::kCublasltAccurate;
}

double bytes_of(const GemmSpec& spec, const MatmulSize& size) {
  return (static_cast<double>(size.m) + static_cast<double>(size.n)) * static_cast<double>(size.k * size_of(spec.a)) +
         static_cast<double>(size.m) * static_cast<double>(size.n) * static_cast<double>(size_of(spec.out));
}

// The longer of two overlapping times, and a little more where they are equal.
double longer(double a, double b) {
  const auto sixth = [](double x) { return x * x * x * x * x * x; };
  const double most = std::max({a, b, 1e-3});
  return most * std::pow(sixth(a / most) + sixth(b / most), 1.0 / 6);
}

}  // namespace

std::span<const GemmTiling> gemm_tilings(const GemmSpec& spec) {
  if (spec.tiling) return {&*spec.tiling, 1};
  if (has_group_scale_inv(spec)) return tilings_for<costs::kGroupedTilings>(spec);
  return sums_in_tensor_cores(spec) ? tilings_for<costs::kFastTilings>(spec)
                                    : tilings_for<costs::kAccurateTilings>(spec);
}

// Models cuBLASLt as choosing among four tile sizes.
double estimate_cublaslt(const GemmSpec& spec, const MatmulSize& size, int multiprocessors, bool scale_inv_as_read) {
  constexpr std::array<std::pair<int, int>, 4> kTiles{std::pair{128, 256}, {128, 128}, {64, 128}, {64, 64}};
  const CublasltCosts& costs = cublaslt_costs(spec);
  const double steps = steps_of(spec, size) * (is_straight(spec, size) ? 1.0 : costs.askew);
  double least = 0;
  multiprocessors = std::max(multiprocessors, 1);
  for (std::size_t i = 0; i < kTiles.size(); ++i) {
    const auto [rows, cols] = kTiles[i];
    const double tiles = std::min(rounded_up(size.m, rows) * rounded_up(size.n, cols),
                                  rounded_up(size.m, cols) * rounded_up(size.n, rows));
    const double ns = std::max(1.0, std::ceil(tiles / multiprocessors)) * (steps * costs.step_ns[i] + costs.tile_ns);
    least = i == 0 ? ns : std::min(least, ns);
  }
  const double copies = scale_inv_as_read ? 0 : costs.copy_us;
  return costs.start_us + copies + longer(least * 1e-3, bytes_of(spec, size) / costs.bytes_per_us);
}

double estimate_traffic(const GemmSpec& spec, const MatmulSize& size) {
  return bytes_of(spec, size) / costs_of(spec).bytes_per_us;
}

double estimate_gemm(const GemmSpec& spec, const MatmulSize& size, const GemmTiling& t, int multiprocessors) {
  const Sm90Costs& costs = costs_of(spec);
  const TilingCost cost = cost_of(costs, t);
  const int cluster = t.cluster_m * t.cluster_n;
  multiprocessors = std::max(multiprocessors, 1);
  const double clusters =
      rounded_up(size.m, std::int64_t{t.m} * t.cluster_m) * rounded_up(size.n, std::int64_t{t.n} * t.cluster_n);
  const double room = std::max(1, multiprocessors / cluster);
  const double steps = steps_of(spec, size);
  const Rounds rounds = rounds_of(t, clusters, steps, room);
  const double idle = 1 - std::min(1.0, clusters * cluster / multiprocessors);
  const double promotions = spec.scale_b == kRowGroups ? cost.by_groups : 1.0;
  const double sums =
      steps * cost.step_ns * promotions * (is_straight(spec, size) ? 1.0 : cost.askew) * (1 - costs.alone * idle);
  const double writing = costs.write_ns * t.m * t.n * static_cast<double>(size_of(spec.out)) / 2;
  const double beside = cost.tile_ns + writing;
  // In ping-pong one warpgroup writes while the other multiplies; nothing hides the writing of the last tile. A tile
  // that more than two blocks share has as many parts to add.
  const double ns = t.pingpong           ? rounds.count * std::max(sums, (sums + beside) / 2) + beside
                    : rounds.cut_along_k ? rounds.count * sums + std::max(rounds.count, 1 / rounds.count) * beside
                                         : rounds.count * (sums + beside);
  const double drawn = rounds.count > 1 ? 1 - costs.idle * (1 - rounds.busy) : std::pow(rounds.busy, costs.few);
  return costs.start_us + longer(ns * 1e-3, bytes_of(spec, size) / costs.bytes_per_us / std::max(drawn, kLeastDrawn));
}

GemmTiling choose_sm90_tiling(const GemmSpec& spec, const MatmulSize& size, int multiprocessors) {
  const std::span<const GemmTiling> all = gemm_tilings(spec);
  GemmTiling best = all.front();
  double least = estimate_gemm(spec, size, best, multiprocessors);
  for (const GemmTiling& tiling : all.subspan(1)) {
    const double time = estimate_gemm(spec, size, tiling, multiprocessors);
    if (time < least) {
      least = time;
      best = tiling;
    }
  }
  return best;
}

namespace {

// With scale_inv of groups nothing larger was measured: there gemm_sm90 is 6 to 10 % ahead of cuBLASLt (an H200,
// docs/notes/gemm.md), which had gained on it before.
constexpr double kMostGroupedProducts = 1e12;

// bf16 and f16, for which cuBLASLt has no estimate. Measured on an H200 (docs/notes/gemm.md): where an operand is not
// stored along k, as in both gradients, gemm_sm90's choice runs at 0.99 to 1.04 of cuBLASLt's best from 3000 x 4096 x
// 4096 to 8192 cubed, and needs no cleared memory. Below that a whole step is 2 to 4 % slower; above, and with a k of
// 28672, the GEMM itself is. Where both operands are stored along k the two kernels are equal, and cuBLASLt needs no
// compiler.
bool prefers_sm90_for_16_bits(const GemmSpec& spec, const MatmulSize& size) {
  constexpr std::int64_t kLeast = 512;
  constexpr std::int64_t kMostDepth = 16384;
  constexpr double kLeastProducts = 5e10;
  constexpr double kMostProducts = 8192.0 * 8192.0 * 8192.0;
  const bool along_k = spec.layout_a == Layout::k_major && spec.layout_b == Layout::k_major;
  return !along_k && std::min({size.m, size.n, size.k}) >= kLeast && size.k <= kMostDepth &&
         products_of(size) >= kLeastProducts && products_of(size) <= kMostProducts;
}

}  // namespace

// Equal estimates favour gemm_sm90: a cuBLASLt call costs the host three times as much. beta * c stays with cuBLASLt,
// except for scale_inv of groups, where the two differ more than beta * c costs.
bool prefers_sm90(const GemmSpec& spec, const MatmulSize& size, int multiprocessors, bool scale_inv_as_read) {
  if (spec.epilogue.c && !has_group_scale_inv(spec)) return false;
  if (!is_fp8(spec.a)) return prefers_sm90_for_16_bits(spec, size);
  if (has_group_scale_inv(spec) && products_of(size) > kMostGroupedProducts) return false;
  const double sm90 = estimate_gemm(spec, size, choose_sm90_tiling(spec, size, multiprocessors), multiprocessors);
  const double reading = scale_inv_as_read ? costs::kReadByGroup : 1.0;
  return sm90 * reading <= estimate_cublaslt(spec, size, multiprocessors, scale_inv_as_read);
}

bool prefers_staging(const GemmSpec& spec, const MatmulSize& size, int multiprocessors) {
  const auto bytes = [&](std::int64_t rows) { return static_cast<double>(rows) * static_cast<double>(size.k); };
  const auto staging = [&](bool staged, std::int64_t rows) {
    return staged ? kStagingUs + 2 * bytes(rows) / kStagedPerUs : 0.0;
  };
  const double operations = 2 * bytes(size.m) * static_cast<double>(size.n);
  const double mma = kMmaStartUs + std::max(operations / kMmaPerUs, (bytes(size.m) + bytes(size.n)) / kStagedPerUs);
  return estimate_gemm(spec, size, *spec.tiling, multiprocessors) + staging(spec.staged_a, size.m) +
             staging(spec.staged_b, size.n) <
         mma;
}

GemmTiling choose_mma_tiling(const GemmSpec& spec, const MatmulSize& size, int multiprocessors) {
  if (spec.tiling) return *spec.tiling;
  const GemmTiling& large = kMmaTilings[0];
  const double tiles = rounded_up(size.m, large.m) * rounded_up(size.n, large.n);
  return tiles >= multiprocessors ? large : kMmaTilings[1];
}

}  // namespace ingot
