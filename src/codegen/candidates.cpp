// The estimate: rounds of tiles, each as long as its slowest part (the tensor cores, or the L2 that feeds them), and
// the writing of a tile where nothing hides it; never less than the memory takes, which a last round of few tiles draws
// on poorly. Stream-K has parts of rounds, and pays for what its blocks leave to each other. The constants are read off
// measurements (docs/kernels.md, gemm_sm90).
#include "ingot/codegen/candidates.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "gemm_sm90_split.cuh"

namespace ingot {
namespace {

constexpr GemmTiling stream_k(int m, int n, int stages) { return {.m = m, .n = n, .stages = stages, .stream_k = true}; }

// 192 sums in a thread leave few registers for an epilogue, and fewer in stream-K: those tilings come last, so that
// lists may end before them.
constexpr std::array kFast{GemmTiling{128, 128, 2, 1, 6, true},
                           GemmTiling{128, 128, 1, 1, 6, true},
                           GemmTiling{128, 256, 2, 1, 4, false},
                           GemmTiling{128, 256, 1, 1, 4, false},
                           GemmTiling{64, 256, 2, 1, 5, true},
                           GemmTiling{64, 128, 1, 1, 8, true},
                           GemmTiling{64, 64, 1, 1, 12, true},
                           stream_k(64, 128, 8),
                           stream_k(128, 128, 6),
                           stream_k(64, 256, 5),
                           stream_k(128, 256, 4),
                           stream_k(256, 128, 4),
                           GemmTiling{128, 192, 2, 1, 5, true},
                           GemmTiling{256, 192, 2, 1, 3, false}};
constexpr std::array kAccurate{GemmTiling{128, 192, 2, 1, 5, false},
                               GemmTiling{128, 192, 1, 1, 5, false},
                               GemmTiling{128, 128, 1, 1, 6, false},
                               GemmTiling{128, 128, 2, 1, 6, false},
                               GemmTiling{256, 128, 1, 1, 4, false},
                               GemmTiling{256, 128, 1, 2, 4, false},
                               GemmTiling{64, 128, 1, 1, 8, true},
                               GemmTiling{64, 64, 1, 1, 12, true},
                               stream_k(64, 128, 8),
                               stream_k(128, 128, 6),
                               stream_k(64, 256, 5),
                               stream_k(256, 128, 4)};

constexpr std::array kGrouped{GemmTiling{128, 128, 1, 1, 6, false},
                              GemmTiling{128, 128, 2, 1, 6, false},
                              GemmTiling{256, 128, 1, 2, 4, false},
                              GemmTiling{256, 128, 1, 1, 4, false},
                              GemmTiling{64, 128, 1, 1, 8, true},
                              GemmTiling{64, 64, 1, 1, 12, true},
                              stream_k(64, 128, 8),
                              stream_k(128, 128, 6),
                              stream_k(64, 256, 5)};

constexpr double kClock = 1.6e3;         // a microsecond's, under load
constexpr double kPerClock = 8192;       // operations of a multiprocessor's tensor cores
constexpr double kPingpongShare = 0.88;  // of that, reached
constexpr double kCooperativeShare = 0.82;
constexpr double kOverlappedShare = 0.84;  // of accurate sums, added while the tensor cores make the next part,
constexpr double kOverlappedShareOfSmallTiles = 0.82;
constexpr double kAccurateShare = 0.78;                      // and of those that the tensor cores wait for,
constexpr double kAccurateShareOfSmallTiles = 0.67;          // up to 128 x 128,
constexpr double kAccuratePingpongShare = 0.43;              // where one warpgroup multiplies at a time,
constexpr double kAccuratePingpongShareOfSmallTiles = 0.33;  // and up to 64 x 64
constexpr double kL2BytesPerClock = 57;                      // to each multiprocessor
constexpr double kMemoryBytesPerUs = 4.0e6;
constexpr double kStartUs = 2.5;          // launch, first loads, last stores
constexpr double kStagingUs = 2.0;        // of one more kernel ahead
constexpr double kMmaPerUs = 300e6;       // operations of gemm_mma where rows start anywhere
constexpr double kClusterUs = 0.3;        // of fast sums: what a cluster costs a launch,
constexpr double kClusterSpares = 0.005;  // and the share of the time that it spares
constexpr double kPingpongTileClocks = 300;
constexpr double kCooperativeTileClocks = 500;
constexpr double kWriteClocksPerOutput = 1.0 / 24;
constexpr double kIdleShare = 0.5;     // of a last round's idle blocks, what the memory's rate loses by them
constexpr double kStreamKShare = 0.8;  // of the tensor cores' rate,
constexpr double kL2Bytes = 40e6;      // and what its blocks, which are apart in K, may share
constexpr double kPartClocks = 5000;   // a part's way from one block to another, and the waiting for it,
constexpr double kPartClocksPerOutput = 4 / kL2BytesPerClock;

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

// As templates/gemm_sm90.cuh decides (kOverlapped).
double accurate_share(const GemmSpec& spec, const GemmTiling& t) {
  if (t.pingpong) return t.m * t.n <= 64 * 64 ? kAccuratePingpongShareOfSmallTiles : kAccuratePingpongShare;
  const bool small = t.m * t.n <= 128 * 128;
  if (t.m <= 128 && !t.stream_k && (!has_group_factors(spec) || spec.scale_b == kBlocks)) {
    return small ? kOverlappedShareOfSmallTiles : kOverlappedShare;
  }
  return small ? kAccurateShareOfSmallTiles : kAccurateShare;
}

double rounded_up(std::int64_t a, std::int64_t b) { return static_cast<double>((a + b - 1) / b); }

// How tiles come to multiprocessors, or to as many clusters as there is room for.
struct Rounds {
  double count;  // of tiles that a block has, one after the other
  double busy;   // share of all blocks, over the whole time
  bool cut_along_k;
};

// Stream-K as in templates/gemm_sm90_split.cuh, for sizes that may not be 32-bit.
Rounds rounds_of(const GemmTiling& t, double tiles, double steps, double room) {
  const double rounds = std::max(1.0, std::ceil(tiles / room));
  const Rounds whole{.count = rounds, .busy = tiles / (rounds * room), .cut_along_k = false};
  if (!t.stream_k) return whole;
  const double units = std::max(1.0, steps - kSm90Spare);
  const double blocks = std::min(room, std::max(tiles, tiles * std::floor(units / std::ceil(std::sqrt(units)))));
  if (std::floor(tiles / blocks) * blocks == tiles) return whole;
  return {.count = tiles / blocks, .busy = blocks / room, .cut_along_k = true};
}

}  // namespace

std::span<const GemmTiling> candidates(const GemmSpec& spec) {
  if (spec.tiling) return {&*spec.tiling, 1};
  if (has_group_factors(spec)) return kGrouped;
  const bool plain = spec.epilogue == GemmEpilogue{} && !is_fp8(spec.out);
  const std::span<const GemmTiling> all =
      spec.fast_accumulation ? std::span<const GemmTiling>(kFast) : std::span<const GemmTiling>(kAccurate);
  if (plain) return all;
  if (!spec.fast_accumulation) return all.first(all.size() - (is_light(spec) ? 0 : 1));
  return all.first(all.size() - (is_light(spec) ? 1 : 2));
}

double estimate(const GemmSpec& spec, const GemmSize& size, const GemmTiling& t, int multiprocessors) {
  const double outputs = static_cast<double>(t.m) * t.n;
  const double share =
      spec.fast_accumulation ? (t.pingpong ? kPingpongShare : kCooperativeShare) : accurate_share(spec, t);
  const double loaded = 128.0 * (static_cast<double>(t.m) / t.cluster_n + static_cast<double>(t.n) / t.cluster_m);
  const double step = std::max(outputs * 2 * 128 / kPerClock / share, loaded / kL2BytesPerClock);
  const int cluster = t.cluster_m * t.cluster_n;
  const bool shares = spec.fast_accumulation && cluster > 1;
  const double steps = rounded_up(size.k, 128);
  const double sums = steps * step * (shares ? 1 - kClusterSpares : 1.0);
  const double writing = outputs * kWriteClocksPerOutput * static_cast<double>(size_of(spec.out)) / 2;
  const double tiles =
      rounded_up(size.m, std::int64_t{t.m} * t.cluster_m) * rounded_up(size.n, std::int64_t{t.n} * t.cluster_n);
  const double room = std::max(1, multiprocessors / cluster);
  const Rounds rounds = rounds_of(t, tiles, steps, room);
  // A tile that more than two blocks work at has as many parts to add.
  const double parts =
      rounds.cut_along_k ? (kPartClocks + outputs * kPartClocksPerOutput) * std::max(1.0, 1 / rounds.count) : 0.0;
  // In ping-pong one warpgroup writes while the other multiplies; the last tile's writing has nothing to hide behind.
  const double tile = sums + (t.pingpong ? kPingpongTileClocks : kCooperativeTileClocks);
  const double clocks =
      t.pingpong           ? rounds.count * std::max(tile, (tile + writing) / 2) + writing
      : rounds.cut_along_k ? rounds.count * sums / kStreamKShare + std::max(1.0, rounds.count) * (tile - sums + writing)
                           : rounds.count * (tile + writing);
  // Few blocks do not draw all that the memory gives. Those of a last round draw more than their share, each.
  const double busy = rounds.count > 1 ? 1 - kIdleShare * (1 - rounds.busy) : rounds.busy;
  const double operands = static_cast<double>(size.m + size.n) * static_cast<double>(size.k);
  const double results =
      static_cast<double>(size.m) * static_cast<double>(size.n) * static_cast<double>(size_of(spec.out));
  // Blocks that are apart in K share operands in the L2 only where all of them fit; few rows do in any case.
  const bool read_again = rounds.cut_along_k && operands > kL2Bytes && size.m > t.m && size.n > t.n;
  const double bytes = (read_again ? tiles * steps * loaded : operands) + results;
  return kStartUs + (shares ? kClusterUs : 0.0) +
         std::max(clocks / kClock, bytes / kMemoryBytesPerUs / std::max(busy, 1e-3)) + parts / kClock;
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

// Read off bench/results/gemm_h200.json: gemm_sm90 has 0.96 to 1.47 of cuBLASLt's first choice but of few rows of a or
// of b, and of accurate sums with one factor for each operand where the product is large (down to 0.96 of cuBLASLt's
// best). And a call of cuBLASLt's costs the host three times as much. beta * c stays cuBLASLt's.
bool prefers_sm90(const GemmSpec& spec, const GemmSize& size) {
  if (spec.epilogue.c) return false;
  constexpr std::int64_t kFew = 128;
  constexpr std::int64_t kShort = 1024;
  constexpr double kLarge = 4096.0 * 4096.0 * 4096.0;
  const bool rowwise = spec.scale_a == kRowwise;
  const std::int64_t least = std::min(size.m, size.n);
  if (least <= kFew) return rowwise && (least <= kFew / 2 || !spec.fast_accumulation);
  if (spec.fast_accumulation || rowwise || size.k <= kShort) return true;
  return static_cast<double>(size.m) * static_cast<double>(size.n) * static_cast<double>(size.k) <= kLarge;
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
