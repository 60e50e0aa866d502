// Lists the tilings of kernel dequant_sm90 that suit a size, and estimates how long each of them takes.
//
// The cost model: clusters of blocks work in rounds. In each round a block goes through the stages of its part of K;
// with stream-K, each block takes an equal share of all stages instead. A stage takes as long as the slowest of these:
// reading it; decoding it and then multiplying it; a warp's waits in each step of 32 k; the time until a stage that was
// handed back is full again; and copying scale_inv row by row. The first x arrives after the prefetched codes, which
// adds a delay. The total is at least the time of the memory traffic. The constants are below.
#include "ingot/codegen/dequant/dequant_sm90.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <span>

#include "ingot/codegen/dequant/dequant_spec.h"
#include "ingot/codegen/types/matmul_size.h"

namespace ingot {
namespace {

constexpr int kStreamK = 0;  // in place of a split

// A block's tokens, warpgroups and waves; k of a stage; blocks on a multiprocessor; warpgroups that share a stage's k;
// parts that K is cut into; blocks that load x for each other; and the percentage of shared memory that the stages
// fill: the first x arrives after all the codes that they request.
struct Sm90Shape {
  int tokens, groups, waves, depth, blocks, k_warps, split, multicast, percent;
};

// A short list: for most measured matmuls one entry is within 1 % of the best
// (bench/results/weight_only_tilings_h200.json); for 32 and 64 tokens it has those that held up best under load. Of
// equal estimates the first is chosen.
constexpr std::array kSm90MmaShapes{
    Sm90Shape{8, 2, 1, 128, 2, 1, 4, 1, 100},         Sm90Shape{8, 2, 1, 256, 1, 1, 1, 1, 100},
    Sm90Shape{8, 2, 1, 256, 1, 2, 2, 1, 52},          Sm90Shape{8, 2, 1, 512, 1, 2, 2, 1, 52},
    Sm90Shape{8, 3, 1, 128, 1, 1, 4, 1, 52},          Sm90Shape{8, 3, 1, 256, 1, 1, 2, 1, 52},
    Sm90Shape{8, 3, 1, 256, 1, 1, 2, 1, 76},          Sm90Shape{8, 3, 1, 256, 1, 1, 2, 1, 100},
    Sm90Shape{8, 3, 1, 256, 1, 1, 4, 1, 52},          Sm90Shape{8, 4, 1, 128, 1, 2, 2, 1, 52},
    Sm90Shape{8, 2, 1, 256, 1, 1, kStreamK, 1, 100},  Sm90Shape{8, 2, 1, 512, 2, 1, kStreamK, 1, 100},
    Sm90Shape{8, 3, 1, 256, 1, 1, kStreamK, 1, 76},   Sm90Shape{16, 2, 1, 256, 1, 2, 2, 1, 52},
    Sm90Shape{16, 2, 1, 512, 1, 2, 2, 1, 52},         Sm90Shape{16, 3, 1, 64, 2, 1, 4, 1, 100},
    Sm90Shape{16, 3, 1, 256, 1, 1, 2, 1, 100},        Sm90Shape{16, 3, 1, 512, 1, 1, 2, 1, 76},
    Sm90Shape{16, 2, 1, 512, 2, 1, kStreamK, 1, 100}, Sm90Shape{16, 3, 1, 256, 1, 1, kStreamK, 1, 76},
    Sm90Shape{16, 3, 1, 512, 1, 1, kStreamK, 1, 100}, Sm90Shape{16, 4, 1, 128, 1, 1, kStreamK, 1, 76},
    Sm90Shape{16, 4, 1, 256, 1, 1, kStreamK, 1, 76}};
constexpr std::array kSm90WgmmaShapes{
    Sm90Shape{16, 2, 1, 128, 1, 1, 2, 1, 76},         Sm90Shape{16, 2, 2, 128, 1, 1, 1, 1, 100},
    Sm90Shape{16, 3, 1, 128, 1, 1, 2, 1, 52},         Sm90Shape{16, 3, 1, 128, 1, 1, 2, 1, 76},
    Sm90Shape{32, 1, 1, 128, 1, 1, 2, 1, 52},         Sm90Shape{32, 1, 2, 128, 2, 1, 1, 1, 100},
    Sm90Shape{32, 2, 1, 256, 1, 1, 2, 1, 100},        Sm90Shape{32, 3, 1, 128, 1, 1, 2, 1, 76},
    Sm90Shape{32, 3, 1, 256, 1, 1, 2, 1, 100},        Sm90Shape{32, 2, 2, 128, 1, 1, kStreamK, 1, 100},
    Sm90Shape{64, 1, 1, 128, 1, 1, 2, 1, 76},         Sm90Shape{64, 1, 1, 128, 1, 1, 2, 1, 100},
    Sm90Shape{64, 1, 1, 256, 1, 1, 2, 1, 100},        Sm90Shape{64, 2, 1, 128, 1, 1, 2, 1, 100},
    Sm90Shape{64, 2, 1, 256, 1, 1, 2, 1, 100},        Sm90Shape{64, 2, 2, 128, 1, 1, 1, 1, 100},
    Sm90Shape{64, 3, 1, 128, 1, 1, 2, 1, 100},        Sm90Shape{64, 3, 1, 256, 1, 1, 2, 1, 100},
    Sm90Shape{64, 1, 2, 64, 2, 1, kStreamK, 1, 100},  Sm90Shape{64, 2, 1, 128, 1, 1, kStreamK, 1, 76},
    Sm90Shape{64, 2, 1, 256, 2, 1, kStreamK, 1, 100}, Sm90Shape{64, 4, 1, 128, 1, 1, 1, 1, 100},
    Sm90Shape{64, 4, 1, 128, 1, 1, kStreamK, 1, 100}, Sm90Shape{64, 4, 1, 256, 1, 1, kStreamK, 1, 100},
    Sm90Shape{128, 2, 1, 128, 1, 1, 1, 1, 100},       Sm90Shape{128, 2, 1, 128, 1, 1, 2, 1, 100},
    Sm90Shape{128, 2, 2, 128, 1, 1, 1, 2, 100},       Sm90Shape{128, 3, 1, 64, 1, 1, 1, 2, 100},
    Sm90Shape{128, 3, 1, 64, 1, 1, 2, 1, 100},        Sm90Shape{256, 2, 1, 64, 1, 1, 1, 1, 100},
    Sm90Shape{256, 2, 1, 64, 1, 1, 1, 2, 100},        Sm90Shape{256, 2, 1, 64, 1, 1, kStreamK, 1, 100}};
// For one weight of FP8 (is_fp8()), in addition: the fastest of those that one H200 timed on 2026-12-01
// (docs/notes/dequant_matmul.md). They come first: of equal estimates a ring with more stages is as fast or faster.
constexpr std::array kSm90Fp8MmaShapes{
    Sm90Shape{8, 3, 1, 128, 1, 1, 2, 1, 100}, Sm90Shape{8, 1, 1, 256, 2, 1, kStreamK, 1, 100},
    Sm90Shape{8, 2, 1, 128, 1, 1, kStreamK, 1, 45}, Sm90Shape{16, 3, 1, 128, 1, 1, 4, 1, 64},
    Sm90Shape{16, 2, 1, 128, 1, 1, kStreamK, 1, 52}};
constexpr std::array kSm90Fp8WgmmaShapes{
    Sm90Shape{16, 3, 1, 128, 1, 1, 2, 1, 100}, Sm90Shape{16, 3, 1, 128, 1, 1, 4, 1, 76},
    Sm90Shape{128, 3, 1, 64, 1, 1, 4, 1, 100}, Sm90Shape{128, 2, 1, 128, 1, 1, kStreamK, 1, 100},
    Sm90Shape{128, 3, 1, 128, 1, 1, kStreamK, 1, 100}};
// The same for experts with few rows (has_few_rows()), in addition: whole tiles. Of 16 rows on average, nearly all
// experts have 24 or fewer. (bench/results/weight_only_experts_variants_h200.json)
constexpr std::array kSm90FewRowsMmaShapes{
    Sm90Shape{8, 2, 1, 128, 2, 1, 1, 1, 100},  Sm90Shape{8, 2, 1, 256, 2, 1, 1, 1, 100},
    Sm90Shape{8, 2, 1, 512, 2, 1, 1, 1, 100},  Sm90Shape{8, 3, 1, 256, 1, 1, 1, 1, 84},
    Sm90Shape{8, 3, 1, 512, 1, 1, 1, 1, 76},   Sm90Shape{8, 4, 1, 256, 1, 1, 1, 1, 64},
    Sm90Shape{8, 4, 1, 512, 1, 1, 1, 1, 100},  Sm90Shape{16, 2, 1, 256, 2, 1, 1, 1, 100},
    Sm90Shape{16, 3, 1, 256, 1, 1, 1, 1, 100}, Sm90Shape{16, 4, 1, 128, 1, 1, 1, 1, 76},
    Sm90Shape{16, 4, 1, 256, 1, 1, 1, 1, 70},  Sm90Shape{16, 4, 1, 512, 1, 1, 1, 1, 100}};
constexpr std::array kSm90FewRowsWgmmaShapes{
    Sm90Shape{24, 1, 2, 128, 2, 1, 1, 1, 100}, Sm90Shape{64, 1, 2, 128, 2, 1, 1, 1, 100},
    Sm90Shape{64, 3, 1, 128, 1, 1, 1, 1, 100}, Sm90Shape{64, 4, 1, 256, 1, 1, 1, 1, 100}};
constexpr std::array kSm90WgmmaTokens{16, 32, 64, 128, 256};

// Does a tile of `tokens` tokens suit m: not larger than m needs, and not so small that weights are decoded over and
// over?
bool suits(int tokens, std::int64_t m) { return (tokens == 8 || tokens / 2 < m) && (tokens >= m || tokens >= 64); }

// Length along K of the sums that have their own scale_inv in kernel sm90; 0 if none have.
int sum_group(const DequantMatmulSpec& spec) { return static_cast<int>(dequant_group(dequant_sm90_factors(spec))); }

bool has_scale_inv_of_codes(const DequantMatmulSpec& spec) { return dequant_sm90_factors(spec).into_codes; }

// Is it like the matmuls of experts that were timed: up to 64 rows of each, in formats with eight or four bits whose
// sums have no scale_inv of their own? (Timed were e4m3fn with scale_inv of rows, and MXFP4, by bf16.) And have so many
// experts rows that whole tiles fill the GPU? Fewer are like one weight, whose K is split.
bool has_few_rows(const DequantMatmulSpec& spec, const MatmulSize& size) {
  constexpr std::int64_t kFewestColumns = 132 * 192;  // of an H200, in tiles of three warpgroups
  return spec.experts && size.m <= 64 && size.n >= kFewestColumns && bits_of(spec.weight) != 6 && sum_group(spec) == 0;
}

// Is it like the matmuls of one weight that were timed with more tilings: FP8 whose sums have no scale_inv of their
// own? (batch_invariant keeps its order of sums.)
bool is_fp8(const DequantMatmulSpec& spec) {
  return (spec.weight == Dtype::e4m3fn || spec.weight == Dtype::e5m2) && sum_group(spec) == 0 && !spec.experts &&
         !spec.batch_invariant;
}

// The host knows how many rows experts have on average, not how they are routed. By Zipf's law one of eight experts has
// 3 times the mean: 12 rows where size_of_experts() says 6, for a mean of 4. (Of more experts, more have several times
// the mean.) A choice has to be good for equal rows and for these:
// - Means from 4 to 6: a busy expert fills a second tile of 8 tokens. All tiles by mma.sync have 16 then, and multiply
//   only 8 where no more have rows. That costs equal rows up to 1.2 %, and saves up to 39 % by Zipf's law
//   (bench/results/weight_only_experts_narrow_h200.json).
// - Means from 14 to 20, in four bits (of FP8 only equal and random rows were timed): a busy expert needs two tiles of
//   24 or of 32 tokens, and the estimate counts the rounds that these add. So DeepSeek-V3's up has 32 tokens and K in
//   two parts: 4.6 % slower than 24 tokens for random rows, and 4 % slower than the fastest by Zipf's law, where 24
//   tokens are 30 % slower.
// A capacity counts as a mean, although no expert has more rows: it is seldom full.
constexpr std::int64_t kBusyRows = 2;  // of a busy expert, for each that size_of_experts() says
constexpr double kBusyExperts = 0.125;

// May busy experts fill a second tile of 8 tokens where the others do not fill the first?
bool outgrows_eight(const DequantMatmulSpec& spec, const MatmulSize& size) {
  return has_few_rows(spec, size) && size.m <= 8 && kBusyRows * size.m > 8;
}
// Do busy experts need two tiles of 24 or 32 tokens where the others need one?
bool outgrows_more(const DequantMatmulSpec& spec, const MatmulSize& size) {
  return has_few_rows(spec, size) && bits_of(spec.weight) == 4 && size.m > 16 && size.m <= 24;
}

// Does the kernel need more registers than a thread has? Where groups have scale_inv, a thread keeps two sets of sums.
// With four warpgroups a thread has 112 registers; mma.sync with 32 tokens and long stages, and wgmma with two waves,
// need many registers besides the sums. So do two waves of 64 tokens in two blocks, but for codes of four bits.
bool spills(const DequantMatmulSpec& spec, const DequantTiling& t) {
  if (t.wgmma && t.blocks == 2 && t.waves * t.tokens >= 128 && t.depth > 64 && bits_of(spec.weight) > 4) return true;
  if (sum_group(spec) == 0) return false;
  return (t.rows == 256 * t.waves && t.tokens * t.waves >= 64) || (!t.wgmma && t.tokens == 32 && t.depth > 128) ||
         (t.wgmma && t.waves > 1 && t.depth > 64);
}

// Where a stage of stream-K has few bytes, handing it over takes longer than reading it.
bool has_short_stages(const DequantMatmulSpec& spec, const DequantTiling& t) {
  const int fewest = t.wgmma ? 8192 : bits_of(spec.weight) == 8 ? 16384 : 24576;
  return t.stream_k && t.rows * t.depth * bits_of(spec.weight) / 8 < fewest;
}

// Experts with few rows: with mma.sync whole tiles need large stages; with wgmma and 32 tokens small ones are faster.
// In FP8 with busy experts, tiles of 128 rows leave less of a round idle than larger ones: in stages of 256, or where K
// is short in two blocks.
bool suits_few_rows(const DequantMatmulSpec& spec, const MatmulSize& size, const DequantTiling& t) {
  if (t.wgmma) return t.tokens != 32 || t.rows * t.depth <= 32768;
  if (outgrows_eight(spec, size) && bits_of(spec.weight) == 8 && t.split == 1) {
    return t.rows == 128 && (t.depth == 256 || (t.blocks == 2 && size.k < std::int64_t{4} * 256));
  }
  return t.split > 1 || t.blocks * t.rows * t.depth * bits_of(spec.weight) / 8 >= 32768;
}

// With fewer stages the copy engine would be idle while the last ones are in use. (wgmma uses a stage for longer: the
// tensor cores compute a step's sums while the next step is decoded.)
int fewest_stages(const DequantTiling& tiling) { return tiling.wgmma || tiling.depth < 256 ? 3 : 2; }

// Do whole tiles, or clusters of two blocks, keep nearly all multiprocessors busy, in one round? Then stream-K has
// nothing to gain: so it was on an H200 with 127 or more of its 132.
bool fills_one_round(const MatmulSize& size, const DequantTiling& t, int multiprocessors) {
  const std::int64_t most = multiprocessors, fewest = divided_up(most * 127, std::int64_t{132});
  if (t.stream_k || t.split > 2 || t.blocks > 1 || t.tokens < std::min<std::int64_t>(size.m, 128)) return false;
  const std::int64_t tiles_m = divided_up(size.m, t.tokens), tiles_n = divided_up(size.n, t.rows);
  if (tiles_m > most || tiles_n > most) return false;  // (their product could overflow)
  const std::int64_t blocks = tiles_m * tiles_n * t.split;
  return blocks >= fewest && blocks <= most;
}

void add_sm90(const DequantMatmulSpec& spec, const DequantTiling& tiling, int percent,
              std::vector<DequantTiling>& all) {
  if (spills(spec, tiling) || has_short_stages(spec, tiling)) return;
  const DequantTiling filled = with_stages(spec, tiling, percent);
  if (filled.stages >= fewest_stages(tiling) && std::ranges::find(all, filled) == all.end()) all.push_back(filled);
}

void add_sm90(const DequantMatmulSpec& spec, const MatmulSize& size, const Sm90Shape& shape, bool wgmma,
              std::vector<DequantTiling>& all) {
  // In a part of fewer than two stages, starting and finishing take most of the time.
  const bool is_cut = shape.split > 1 && size.k >= std::int64_t{2} * shape.depth * shape.split;
  const int rows = 64 * shape.groups / shape.k_warps * shape.waves;
  const DequantTiling tiling{.wgmma = wgmma,
                             .tokens = shape.tokens,
                             .rows = rows,
                             .depth = shape.depth,
                             .split = is_cut ? shape.split : 1,
                             .k_warps = shape.k_warps,
                             .waves = shape.waves,
                             .multicast = size.n < std::int64_t{rows} * shape.multicast ? 1 : shape.multicast,
                             .blocks = shape.blocks,
                             .stream_k = shape.split == kStreamK};
  if (has_few_rows(spec, size) && !suits_few_rows(spec, size, tiling)) return;
  add_sm90(spec, tiling, shape.percent, all);
}

}  // namespace

std::vector<DequantTiling> dequant_sm90_tilings(const DequantMatmulSpec& spec, const MatmulSize& size, bool wgmma_alone,
                                                int multiprocessors) {
  std::vector<DequantTiling> all;
  const auto add = [&](std::span<const Sm90Shape> shapes, bool wgmma, std::int64_t rows) {
    for (Sm90Shape shape : shapes) {
      // (Where stream-K cuts tiles depends on the number of tokens, and that of experts is not known.)
      if ((wgmma_alone || spec.experts) && shape.split == kStreamK) continue;
      if (!wgmma && outgrows_eight(spec, size)) shape.tokens = std::max(shape.tokens, 16);
      if (suits(shape.tokens, rows)) add_sm90(spec, size, shape, wgmma, all);
    }
  };
  const std::int64_t mma_rows = (outgrows_eight(spec, size) ? kBusyRows : 1) * size.m;
  if (is_fp8(spec)) {
    add(kSm90Fp8MmaShapes, false, mma_rows);
    add(kSm90Fp8WgmmaShapes, true, size.m);
  }
  if (!wgmma_alone) add(kSm90MmaShapes, false, mma_rows);
  add(kSm90WgmmaShapes, true, size.m);
  if (has_few_rows(spec, size)) {
    add(kSm90FewRowsMmaShapes, false, mma_rows);
    add(kSm90FewRowsWgmmaShapes, true, size.m);
  }
  if (is_fp8(spec) && size.m > 64 &&
      std::ranges::any_of(all, [&](const DequantTiling& t) { return fills_one_round(size, t, multiprocessors); })) {
    std::erase_if(all, [](const DequantTiling& t) { return t.stream_k; });
  }
  return all;
}

std::vector<DequantTiling> dequant_sm90_tilings_like(DequantTiling tiling, const DequantMatmulSpec& spec,
                                                     const MatmulSize& size) {
  std::vector<DequantTiling> all;
  for (const int tokens : kSm90WgmmaTokens) {
    for (const int blocks : {1, 2}) {
      tiling.tokens = tokens;
      tiling.blocks = blocks;
      if (suits(tokens, size.m)) add_sm90(spec, tiling, 100, all);
    }
  }
  return all;
}

namespace {

// Time per code: the mean with all warps of a multiprocessor busy, and what one warp takes by itself (which the model
// divides by the number of warps).
struct DequantDecoding {
  double mma_ns, mma_warp_ns, wgmma_ns;
};

// Fitted to the times of all tilings of 111 matmuls, so that the tiling with the lowest estimate is nearly as fast as
// the fastest one. Each was launched right after the other with the same weights: e4m3fn by bf16 with scale_inv of rows
// for 1 to 1024 tokens, from 32 tokens on also under the power that a GPU may draw for long; other codes and scale_inv
// for 1, 16 and 64 tokens.
//
// The choice was timed for 106 of them (bench/results/weight_only_tilings_h200.json): it was slower than the fastest
// tiling by 0.9 % on average and by 9 % at most. For version 3 of the packed layouts, wgmma_ns of six and four bits was
// lowered; for the 52 matmuls that were timed with it, the choice was slower by 0.6 % and 5 %.
//
// The figures describe the model, not the hardware. Rates per nanosecond are those of one multiprocessor.
struct DequantSm90Costs {
  double start_us = 1.374;
  double ring_us = 0.853;            // added where stages fill all of shared memory
  double whole_ring = 1;             // with one whole tile in a block, the share beyond which that is free
  double memory_per_us = 4.303e+06;  // bytes of memory bandwidth
  double bytes_per_ns = 59.45;       // into shared memory, with x
  DequantDecoding eight{0.001447, 0.1364, 0.01503};
  DequantDecoding six{0, 0.002775, 0.0133};
  DequantDecoding four{0.009649, 0.02242, 0.0093};
  double wgmma_warp_ns = 0.00241;
  double wgmma_per_ns = 4366;  // codes times tokens
  double mma_sum_ns = 0.1392;  // one warp's time for each code and token whose sum has its own scale_inv
  double wgmma_sum_ns = 0.01483;
  double mx_mma_warp_ns = 0.1042;  // for a code that is multiplied by a scale_inv
  double mx_wgmma_ns = 0.00104;
  double mx_wgmma_warp_ns = 0.02466;
  double mx_row_ns = 3.563;      // to copy the scale_inv of a row of a stage
  double mx_byte_ns = 0;         // to copy one scale_inv where rows of them do not begin at multiples of 4 bytes
  double stage_ns = 213.2;       // a warp's wait in each stage
  double multicast_ns = 142.6;   // the same where blocks wait for each other
  double mma_step_ns = 76.81;    // a warp's wait in each step of 32 k, for 16 tokens
  double wgmma_step_ns = 41.45;  // the same for 64 tokens
  double ring_ns = 1579;         // from a stage's last use until its next codes have arrived
  double tile_ns = 0;            // to begin and end a tile
  double mma_token = 0;          // part of the time that each of a tile's tokens beyond 8 adds, by mma.sync
  double write_ns = 187.3;       // to write 1024 outputs
  double exchange_ns = 2.933;
  double k_warps_ns = 438.5;
  double part_ns = 3004;         // to add another block's sums
  double cluster_ns = 0;         // to exchange sums, for each other block of a cluster
  double stream_k = 1;           // factor of a stage's time, as all multiprocessors are busy
  double stream_k_apart = 1.08;  // the same where tiles share their rows but not their tokens
};
constexpr DequantSm90Costs kDequantSm90{};

// Fitted to the 72 cases of bench/results/weight_only_experts_variants_h200.json, before busy experts counted. Of the
// tilings that were offered and timed, the choice was slower than the fastest one by 0.6 % on average and by 6 % at
// most. (Where K is no multiple of 128, the times of MX by wgmma are those of the kernel before, divided by what :v11
// gained over :v8.) mma_token: the fastest tiling by mma.sync takes 9 to 23 % longer with 16 rows and 16 tokens than
// with 4 rows and 8, in MXFP4.
constexpr DequantSm90Costs kDequantFewRows{.four = {0.0065, 0.02242, 0.0093},
                                           .wgmma_per_ns = 5557,
                                           .mx_wgmma_warp_ns = 0.102,
                                           .mx_row_ns = 4.12,
                                           .mx_byte_ns = 1.19,
                                           .mma_step_ns = 60,
                                           .wgmma_step_ns = 98,
                                           .tile_ns = 600,
                                           .mma_token = 0.02};

// For one weight of FP8 (is_fp8()), fitted to what one H200 timed on 2026-12-01 (docs/notes/dequant_matmul.md) and to
// bench/results/weight_only_stream_k_h200.json; of 17 to 64 tokens nothing new was timed. Up to 16 tokens: steps wait
// less, and one whole tile in a block loses nothing by a ring of more than 45 % of shared memory.
constexpr DequantSm90Costs kDequantFp8FewTokens{.ring_us = 0.6,
                                                .whole_ring = 0.45,
                                                .eight = {0.001447, 0.1364, 0.005},
                                                .stage_ns = 172,
                                                .mma_step_ns = 48,
                                                .ring_ns = 1283,
                                                .part_ns = 2500};
// From 65 tokens on the GPU is at its power cap: steps and rings wait longer, and stream-K, by which no multiprocessor
// is idle, makes a stage longer with one tile of tokens too.
constexpr DequantSm90Costs kDequantFp8ManyTokens{.eight = {0.001447, 0.1364, 0.02274},
                                                 .wgmma_per_ns = 5701,
                                                 .stage_ns = 62.4,
                                                 .multicast_ns = 145,
                                                 .wgmma_step_ns = 59.68,
                                                 .ring_ns = 2091,
                                                 .write_ns = 128.8,
                                                 .part_ns = 6505,
                                                 .cluster_ns = 1071,
                                                 .stream_k = 1.092,
                                                 .stream_k_apart = 1.091};

const DequantSm90Costs& costs_of(const DequantMatmulSpec& spec, const MatmulSize& size) {
  if (is_fp8(spec) && size.m <= 16) return kDequantFp8FewTokens;
  if (is_fp8(spec) && size.m > 64) return kDequantFp8ManyTokens;
  return has_few_rows(spec, size) ? kDequantFewRows : kDequantSm90;
}

// The longer of two overlapping times, and a little more where they are equal.
double longer(double a, double b) {
  const double most = std::max({a, b, 1e-3});
  return most * std::pow(std::pow(a / most, 6) + std::pow(b / most, 6), 1.0 / 6);
}

// Clusters that run at once, with one block on each multiprocessor. A cluster stays within a part of the GPU, which has
// 16 or 18 multiprocessors.
int clusters_at_once(int multiprocessors, int blocks) {
  const int parts = std::max(1, multiprocessors / 16);
  const int whole = std::max(1, multiprocessors) / blocks;
  return std::max(1, blocks <= 2 ? whole : whole - parts / 4);
}

// Sums with their own scale_inv, per code.
double sums_of_code(const DequantMatmulSpec& spec, const DequantTiling& t) {
  return sum_group(spec) == 0 ? 0 : static_cast<double>(t.tokens) / sum_group(spec);
}

const DequantDecoding& decoding_of(const DequantMatmulSpec& spec, const DequantSm90Costs& costs) {
  return bits_of(spec.weight) == 8 ? costs.eight : bits_of(spec.weight) == 6 ? costs.six : costs.four;
}

// Time to decode and multiply one code, with `warps` warps.
double ns_of_mma(const DequantMatmulSpec& spec, const DequantTiling& t, double warps, const DequantSm90Costs& costs) {
  const DequantDecoding& decoding = decoding_of(spec, costs);
  const double alone = decoding.mma_warp_ns + (has_scale_inv_of_codes(spec) ? costs.mx_mma_warp_ns : 0) +
                       costs.mma_sum_ns * sums_of_code(spec, t);
  return decoding.mma_ns + alone / warps;
}
double ns_of_wgmma(const DequantMatmulSpec& spec, const DequantTiling& t, double warps, const DequantSm90Costs& costs) {
  const bool has_factors = has_scale_inv_of_codes(spec);
  const double alone = costs.wgmma_warp_ns + (has_factors ? costs.mx_wgmma_warp_ns : 0);
  return decoding_of(spec, costs).wgmma_ns + (has_factors ? costs.mx_wgmma_ns : 0) + alone / warps +
         t.tokens / costs.wgmma_per_ns + costs.wgmma_sum_ns * sums_of_code(spec, t);
}

// Time to copy a stage's scale_inv of codes.
double ns_of_copying(const DequantMatmulSpec& spec, const MatmulSize& size, const DequantTiling& t, double at_once,
                     const DequantSm90Costs& costs) {
  if (!has_scale_inv_of_codes(spec)) return 0;
  const bool in_bytes = divided_up(size.k, 32) % 4 != 0 && costs.mx_byte_ns > 0;
  return in_bytes ? costs.mx_byte_ns * t.rows * t.depth / 32 : costs.mx_row_ns * t.rows * at_once;
}

// The stages and tiles that a block works through, and the partial sums that it adds to other blocks'.
struct Rounds {
  double stages, tiles, parts, blocks_at_once;
};
// more: tiles along M, for each that experts with equal rows have.
Rounds rounds_of(const MatmulSize& size, const DequantTiling& t, int multiprocessors, double more,
                 const DequantSm90Costs& costs) {
  const int cluster = t.split * t.multicast;
  const double tiles_m = static_cast<double>(divided_up(size.m, t.tokens));
  const double tiles = more * tiles_m * static_cast<double>(divided_up(size.n, std::int64_t{t.rows} * t.multicast));
  const double one_each = clusters_at_once(multiprocessors, cluster);  // with one block on each multiprocessor
  const double room = one_each * t.blocks;
  const auto stages = static_cast<double>(divided_up(size.k, t.depth));
  const auto at_once = [&](double clusters) { return std::min<double>(t.blocks, std::ceil(clusters / one_each)); };
  if (!t.stream_k) {
    const double rounds = std::ceil(tiles / room);
    return {.stages = rounds * std::ceil(stages / t.split),
            .tiles = rounds,
            .parts = 0,
            .blocks_at_once = at_once(std::ceil(tiles / rounds))};
  }
  const double blocks = std::max(1.0, estimate_stream_k_blocks(tiles, stages, room));
  const double last = std::fmod(tiles, blocks);
  // (Sizes may be near 2^63, for which no whole number here is large enough.)
  const bool is_alone =
      stream_k_cuts_last_alone(static_cast<u64>(std::min(tiles, 0x1p62)), static_cast<u32>(std::min(stages, 0x1p31)),
                               static_cast<u64>(std::min(blocks, 0x1p62)), dequant_outgrows_l2(size.m, size.k));
  const double parts = last == 0 ? 0 : is_alone ? blocks / last : 1;
  // Blocks with the same rows and other tokens work at different k: their codes are in the L2 less often.
  const double apart = tiles_m > 1 ? costs.stream_k_apart : costs.stream_k;
  return {.stages = std::ceil(tiles * stages / blocks) * apart,
          .tiles = std::max(1.0, tiles / blocks),
          .parts = parts,
          .blocks_at_once = at_once(blocks)};
}

double estimate_rounds(const DequantMatmulSpec& spec, const MatmulSize& size, const DequantTiling& t,
                       int multiprocessors, const Rounds& rounds) {
  // A tile's tokens that are loaded, multiplied and written.
  const u32 rows = static_cast<u32>(std::min<std::int64_t>(size.m, t.tokens));
  const double tokens = 8.0 * dequant_token_tiles(dequant_sm90_tiling(spec, t), rows);
  const DequantSm90Costs& costs = costs_of(spec, size);
  const double at_once = rounds.blocks_at_once;
  // Times of a stage.
  const double weights = static_cast<double>(t.rows) * t.depth;
  const double bytes = weights * bits_of(spec.weight) / 8 + 2.0 * tokens * t.depth / t.multicast;
  const double reading = bytes / costs.bytes_per_ns * at_once;
  const double warps = 4.0 * t.rows / (64 * t.waves) * t.k_warps * at_once;
  const double of_code = t.wgmma ? ns_of_wgmma(spec, t, warps, costs) : ns_of_mma(spec, t, warps, costs);
  const double steps = t.depth / 32.0 / t.k_warps * t.waves;
  const double step = t.wgmma ? costs.wgmma_step_ns * tokens / 64 : costs.mma_step_ns * (16 + tokens) / 32;
  const double filling = (costs.ring_ns + reading) / t.stages;
  const double copying = ns_of_copying(spec, size, t, at_once, costs);
  const double waiting = costs.stage_ns + (t.multicast > 1 ? costs.multicast_ns : 0) + step * steps;
  const double stage = std::max({reading, weights * at_once * of_code, waiting, filling, copying});
  // Times of a tile.
  const double writing = costs.write_ns * t.rows * tokens / 1024;
  const double exchange =
      (t.split * t.k_warps == 1 ? 0 : costs.exchange_ns + costs.cluster_ns * (t.split - 1) + writing) +
      (t.k_warps > 1 ? costs.k_warps_ns : 0);
  const double ns = rounds.stages * stage + rounds.tiles * (costs.tile_ns * at_once + writing + exchange) +
                    rounds.parts * costs.part_ns;
  const double all_bytes = static_cast<double>(size.n) * static_cast<double>(size.k) * bits_of(spec.weight) / 8;
  const double room = std::max(1, multiprocessors) * double{kDequantSharedTotal};
  const double most = !t.stream_k && rounds.tiles == 1 ? costs.whole_ring : 1;
  const double asked = std::min({dequant_sm90_fills(spec, t), all_bytes / room, most});
  const double more = 1 + (t.wgmma ? 0 : costs.mma_token * (tokens - 8));
  return costs.start_us + costs.ring_us * asked + more * longer(ns * 1e-3, all_bytes / costs.memory_per_us);
}

}  // namespace

// Where there are few rounds, a busy expert's second tile may be one round more, which takes as long as any: an
// estimate is the mean of that for equal rows, twice, and that with busy experts.
double estimate_dequant_sm90(const DequantMatmulSpec& spec, const MatmulSize& size, const DequantTiling& t,
                             int multiprocessors) {
  const auto us = [&](double more) {
    const Rounds rounds = rounds_of(size, t, multiprocessors, more, costs_of(spec, size));
    return estimate_rounds(spec, size, t, multiprocessors, rounds);
  };
  if (!outgrows_more(spec, size)) return us(1);
  const auto tiles = static_cast<double>(divided_up(kBusyRows * size.m, t.tokens));
  return (2 * us(1) + us(1 - kBusyExperts + kBusyExperts * tiles)) / 3;
}

}  // namespace ingot
