// The estimate: rounds of tiles, each as long as its slowest part (the tensor cores, or the L2 that feeds them), and
// the writing of a tile where nothing hides it; never less than the memory takes. The constants are read off
// measurements (docs/kernels.md, gemm_sm90).
#include "ingot/codegen/candidates.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace ingot {
namespace {

// 192 sums in a thread leave few registers for an epilogue: those tilings come last, so that lists may end before them.
constexpr std::array kFast{
    GemmTiling{128, 128, 2, 1, 6, true},  GemmTiling{128, 128, 1, 1, 6, true}, GemmTiling{128, 256, 2, 1, 4, false},
    GemmTiling{128, 256, 1, 1, 4, false}, GemmTiling{64, 256, 2, 1, 5, true},  GemmTiling{64, 128, 1, 1, 8, true},
    GemmTiling{64, 64, 1, 1, 12, true},   GemmTiling{128, 192, 2, 1, 5, true}, GemmTiling{256, 192, 2, 1, 3, false}};
constexpr std::array kAccurate{GemmTiling{256, 128, 1, 1, 4, false}, GemmTiling{256, 128, 1, 2, 4, false},
                               GemmTiling{128, 192, 2, 1, 5, false}, GemmTiling{128, 192, 1, 1, 5, false},
                               GemmTiling{128, 128, 2, 1, 6, false}, GemmTiling{128, 128, 1, 1, 6, false},
                               GemmTiling{64, 128, 1, 1, 8, true},   GemmTiling{64, 64, 1, 1, 12, true}};

constexpr std::array kGrouped{GemmTiling{256, 128, 1, 2, 4, false}, GemmTiling{256, 128, 1, 1, 4, false},
                              GemmTiling{128, 128, 2, 1, 6, false}, GemmTiling{128, 128, 1, 1, 6, false},
                              GemmTiling{64, 128, 1, 1, 8, true},   GemmTiling{64, 64, 1, 1, 12, true}};

constexpr double kClock = 1.6e3;         // a microsecond's, under load
constexpr double kPerClock = 8192;       // operations of a multiprocessor's tensor cores
constexpr double kPingpongShare = 0.88;  // of that, reached
constexpr double kCooperativeShare = 0.82;
constexpr double kAccurateShare = 0.78;
constexpr double kAccurateShareOfSmallTiles = 0.67;  // up to 128 x 128: the tensor cores wait for sums to be added up
constexpr double kL2BytesPerClock = 57;              // to each multiprocessor
constexpr double kMemoryBytesPerUs = 4.0e6;
constexpr double kStartUs = 2.5;          // launch, first loads, last stores
constexpr double kStagingUs = 2.0;        // of one more kernel ahead
constexpr double kMmaPerUs = 300e6;       // operations of gemm_mma where rows start anywhere
constexpr double kClusterUs = 0.3;        // of fast sums: what a cluster costs a launch,
constexpr double kClusterSpares = 0.005;  // and the share of the time that it spares
constexpr double kPingpongTileClocks = 300;
constexpr double kCooperativeTileClocks = 500;
constexpr double kWriteClocksPerOutput = 1.0 / 24;

// Does the epilogue need no more registers than one further matrix, or one further output, takes? Others spill beside
// 192 sums (`ingot show`; the compile matrix watches).
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

double rounded_up(std::int64_t a, std::int64_t b) { return static_cast<double>((a + b - 1) / b); }

}  // namespace

std::span<const GemmTiling> candidates(const GemmSpec& spec) {
  if (spec.tiling) return {&*spec.tiling, 1};
  if (has_group_factors(spec)) return kGrouped;
  if (!spec.fast_accumulation) return kAccurate;
  const std::span<const GemmTiling> fast(kFast);
  if (spec.epilogue == GemmEpilogue{} && !is_fp8(spec.out)) return fast;
  return fast.first(fast.size() - (is_light(spec) ? 1 : 2));
}

double estimate(const GemmSpec& spec, const GemmSize& size, const GemmTiling& t, int multiprocessors) {
  const double outputs = static_cast<double>(t.m) * t.n;
  const double accurate = t.m * t.n <= 128 * 128 ? kAccurateShareOfSmallTiles : kAccurateShare;
  const double share = !spec.fast_accumulation ? accurate : t.pingpong ? kPingpongShare : kCooperativeShare;
  const double loaded = 128.0 * (static_cast<double>(t.m) / t.cluster_n + static_cast<double>(t.n) / t.cluster_m);
  const double step = std::max(outputs * 2 * 128 / kPerClock / share, loaded / kL2BytesPerClock);
  const int cluster = t.cluster_m * t.cluster_n;
  const bool shares = spec.fast_accumulation && cluster > 1;
  const double sums = rounded_up(size.k, 128) * step * (shares ? 1 - kClusterSpares : 1.0);
  const double writing = outputs * kWriteClocksPerOutput * static_cast<double>(size_of(spec.out)) / 2;
  const double tiles =
      rounded_up(size.m, std::int64_t{t.m} * t.cluster_m) * rounded_up(size.n, std::int64_t{t.n} * t.cluster_n);
  const double room = std::max(1, multiprocessors / cluster);
  const double rounds = std::max(1.0, std::ceil(tiles / room));
  // In ping-pong one warpgroup writes while the other multiplies; the last tile's writing has nothing to hide behind.
  const double clocks =
      t.pingpong ? rounds * std::max(sums + kPingpongTileClocks, (sums + kPingpongTileClocks + writing) / 2) + writing
                 : rounds * (sums + kCooperativeTileClocks + writing);
  // Few blocks do not draw all that the memory gives.
  const double busy = std::min(1.0, tiles / room);
  const double bytes =
      static_cast<double>(size.m + size.n) * static_cast<double>(size.k) +
      static_cast<double>(size.m) * static_cast<double>(size.n) * static_cast<double>(size_of(spec.out));
  return kStartUs + (shares ? kClusterUs : 0.0) +
         std::max(clocks / kClock, bytes / kMemoryBytesPerUs / std::max(busy, 1e-3));
}

GemmTiling choose_tiling(const GemmSpec& spec, const GemmSize& size, int multiprocessors) {
  const std::span<const GemmTiling> all = candidates(spec);
  GemmTiling best = all.front();
  double least = estimate(spec, size, best, multiprocessors);
  for (const GemmTiling& tiling : all.subspan(1)) {
    const double time = estimate(spec, size, tiling, multiprocessors);
    if (time < least) {
      least = time;
      best = tiling;
    }
  }
  return best;
}

// Read off bench/results/gemm_h200.json: of fast sums 0.96 to 1.23 of cuBLASLt's first choice, but of few rows of a or
// of b; of accurate ones only where K is short. And a call of cuBLASLt's costs the host three times as much. What was
// not measured there, beta * c and f32 output, stays cuBLASLt's.
bool prefers_sm90(const GemmSpec& spec, const GemmSize& size) {
  if (spec.epilogue.c || spec.out == Dtype::f32) return false;
  constexpr std::int64_t kFew = 128;
  constexpr std::int64_t kShort = 1024;
  const std::int64_t least = std::min(size.m, size.n);
  if (least <= kFew) return spec.scale_a == kRowwise && least <= kFew / 2;
  return spec.fast_accumulation || size.k <= kShort;
}

bool prefers_staging(const GemmSpec& spec, const GemmSize& size, int multiprocessors) {
  const auto bytes = [&](std::int64_t rows) { return static_cast<double>(rows) * static_cast<double>(size.k); };
  const auto staging = [&](bool staged, std::int64_t rows) {
    return staged ? kStagingUs + 2 * bytes(rows) / kMemoryBytesPerUs : 0.0;
  };
  const double operations = 2 * bytes(size.m) * static_cast<double>(size.n);
  const double mma = kStartUs + std::max(operations / kMmaPerUs, (bytes(size.m) + bytes(size.n)) / kMemoryBytesPerUs);
  return estimate(spec, size, *spec.tiling, multiprocessors) + staging(spec.staged_a, size.m) +
             staging(spec.staged_b, size.n) <
         mma;
}

GemmTiling choose_mma_tiling(const GemmSpec& spec, const GemmSize& size, int multiprocessors) {
  if (spec.tiling) return *spec.tiling;
  const GemmTiling& large = kMmaTilings[0];
  const double tiles = rounded_up(size.m, large.m) * rounded_up(size.n, large.n);
  return tiles >= multiprocessors ? large : kMmaTilings[1];
}

}  // namespace ingot
