// Stream-K's arithmetic, for many shapes, tilings and numbers of SMs: exactly one block has each step of each tile;
// stretches are equal; and the blocks, run one after the other in the order in which a GPU starts them, never wait for
// one that has not run, and leave each flag as it was.
#include "gemm/stream_k.cuh"

#include <fmt/format.h>

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <string>
#include <vector>

#include "dequant/dequant_sm90_tiling.cuh"
#include "gemm/gemm_sm90_split.cuh"
#include "ingot/codegen/types/matmul_size.h"

BOOST_AUTO_TEST_SUITE(test_stream_k)

using namespace ingot;

namespace {

struct Work {
  std::string name;
  StreamKWork work;
  u32 at_once;  // blocks that run at once

  u32 blocks() const { return stream_k_blocks(work, at_once); }
  StreamKSplit split() const { return stream_k_split(work, blocks()); }
};

Work gemm(const Sm90Tiling& t, u32 m, u32 n, u32 k, u32 at_once) {
  return {.name = fmt::format("{}x{}x{} in {}x{} on {}", m, n, k, t.m, t.n, at_once),
          .work = sm90_work(t, m, n, k),
          .at_once = at_once};
}
Work dequant(const DequantSm90Tiling& t, u32 m, u32 n, u32 k, u32 at_once) {
  return {.name = fmt::format("{}x{}x{} in {}x{}x{} on {}", m, n, k, t.tokens, dequant_rows(t), t.depth, at_once),
          .work = dequant_work(t, m, n, k),
          .at_once = at_once};
}

Work alone(Work work) {
  work.name += ", the last round alone";
  work.work.last_round_alone = true;
  return work;
}

constexpr Sm90Tiling kSmall{.m = 64, .n = 128, .stages = 8, .stream_k = true};
constexpr Sm90Tiling kLarge{.m = 128, .n = 256, .stages = 4, .stream_k = true};
constexpr DequantSm90Tiling kFew{.tokens = 8, .groups = 2, .depth = 256, .stages = 3, .stream_k = true};
constexpr DequantSm90Tiling kMany{
    .tokens = 64, .groups = 4, .depth = 128, .stages = 4, .wgmma = true, .stream_k = true};

std::vector<Work> all_work() {
  std::vector<Work> all;
  for (const u32 at_once : {1U, 2U, 7U, 78U, 114U, 132U, 264U}) {
    for (const u32 m : {1U, 64U, 65U, 200U, 1024U}) {
      for (const u32 n : {1U, 128U, 1000U, 4096U, 11008U}) {
        for (const u32 k : {16U, 128U, 144U, 384U, 512U, 1000U, 4096U, 11008U, 28672U}) {
          for (const Sm90Tiling& tiling : {kSmall, kLarge}) all.push_back(gemm(tiling, m, n, k, at_once));
          for (const DequantSm90Tiling& tiling : {kFew, kMany}) all.push_back(dequant(tiling, m, n, k, at_once));
          all.push_back(alone(all.back()));
        }
      }
    }
  }
  return all;
}

std::vector<StreamKSpan> spans_of(const StreamKSplit& split, u32 block) {
  std::vector<StreamKSpan> spans;
  for (StreamKStretch stretch(split, block); stretch.more(); stretch.advance()) spans.push_back(stretch.span());
  return spans;
}

}  // namespace

BOOST_AUTO_TEST_CASE(every_step_is_someones_once) {
  for (const Work& work : all_work()) {
    const StreamKSplit split = work.split();
    const u32 steps = work.work.steps;
    std::vector<u32> seen(std::size_t{work.work.tiles} * steps);
    for (u32 block = 0; block < work.blocks(); ++block) {
      for (const StreamKSpan& span : spans_of(split, block)) {
        BOOST_REQUIRE_MESSAGE(span.begin < span.end && span.end <= steps, work.name);
        for (u32 step = span.begin; step < span.end; ++step) ++seen[std::size_t{span.tile} * steps + step];
      }
    }
    BOOST_REQUIRE_MESSAGE(std::ranges::all_of(seen, [](u32 count) { return count == 1; }), work.name);
  }
}

BOOST_AUTO_TEST_CASE(blocks_have_as_much_to_do) {
  for (const Work& work : all_work()) {
    const StreamKSplit split = work.split();
    BOOST_REQUIRE_MESSAGE(estimate_stream_k_blocks(work.work.tiles, split.units(), work.at_once) == work.blocks(),
                          work.name);
    BOOST_REQUIRE(work.blocks() >= 1 && work.blocks() <= work.at_once);
    u32 least = ~0U;
    u32 most = 0;
    for (u32 block = 0; block < work.blocks(); ++block) {
      u32 units = 0;
      u32 parts = 0;
      for (const StreamKSpan& span : spans_of(split, block)) {
        units += span.end - span.begin - (span.begin == 0 ? split.spare : 0);
        parts += span.begin == 0 ? 0 : 1;
        // Only a block's first piece may belong to another block's tile: there is memory for one part per block.
        BOOST_REQUIRE_MESSAGE(span.begin == 0 || units == span.end - span.begin, work.name);
        // If others add parts to this tile, its owner still has steps to come when it adds them.
        if (span.begin == 0 && span.end < split.steps) BOOST_REQUIRE_MESSAGE(span.end > split.spare, work.name);
      }
      BOOST_REQUIRE_MESSAGE(parts <= 1, work.name);
      least = std::min(least, units);
      most = std::max(most, units);
    }
    // Tiles stay whole if they divide evenly, or if there are too few steps to occupy all SMs.
    const u32 difference = split.shared == 0 && work.work.tiles % work.blocks() != 0 ? split.units() : 1;
    BOOST_REQUIRE_MESSAGE(most - least <= difference, work.name << ": " << least << " to " << most);
  }
}

// Runs the protocol of stream_k_parts.cuh, with sets of steps in place of sums.
BOOST_AUTO_TEST_CASE(owners_wait_for_blocks_before_them_and_find_every_part) {
  for (const Work& work : all_work()) {
    const StreamKSplit split = work.split();
    const u32 blocks = work.blocks();
    std::vector<u32> flags(blocks);
    std::vector<std::vector<StreamKSpan>> parts(blocks);
    for (u32 block = 0; block < blocks; ++block) {
      for (StreamKStretch stretch(split, block); stretch.more(); stretch.advance()) {
        const StreamKSpan span = stretch.span();
        if (!stretch.owns()) {
          parts[stretch.index()].push_back(span);
          ++flags[stretch.index()];
          continue;
        }
        u32 end = span.end;
        for (u32 i = stretch.index() + 1; stretch.reaches(i); ++i) {
          BOOST_REQUIRE_MESSAGE(i < blocks && flags[i] == 1, work.name << ": block " << block);
          flags[i] = 0;
          const StreamKSpan part = parts[i].front();
          BOOST_REQUIRE_MESSAGE(part.tile == span.tile && part.begin == end, work.name);
          end = part.end;
        }
        BOOST_REQUIRE_MESSAGE(end == split.steps, work.name);
      }
    }
    BOOST_REQUIRE_MESSAGE(std::ranges::all_of(flags, [](u32 flag) { return flag == 0; }), work.name);
  }
}

BOOST_AUTO_TEST_CASE(what_is_cut) {
  // 86 tiles of 32 steps on 132 SMs: a block has 19 or 20 of the 30 units of a tile.
  const Work few = gemm(kSmall, 64, 11008, 4096, 132);
  BOOST_TEST(few.blocks() == 132U);
  BOOST_TEST(few.split().shared == 86U);
  BOOST_TEST(few.split().share == 19U);
  // The last round and the one before it are cut.
  const Work ragged = gemm(kLarge, 8192, 8192, 4096, 132);
  BOOST_TEST(ragged.work.tiles == 2048U);
  BOOST_TEST(ragged.split().shared == 132U + 2048 % 132);
  BOOST_TEST(ragged.split().share >= ragged.split().units());
  // 448 tiles of 32 steps, with decoded weights: 132 tiles and the 52 that are left over are cut; no steps are spare.
  const Work codes = dequant(kFew, 1, 57344, 8192, 132);
  BOOST_TEST(codes.split().shared == 132U + 448 % 132);
  BOOST_TEST(codes.split().share == (132U + 52) * 32 / 132);
  BOOST_TEST(codes.split().step(1) == 1U);
  // Of an x that the L2 does not hold, the last round alone: 132 of 160 tiles stay whole.
  constexpr DequantSm90Tiling kPrefill{
      .tokens = 256, .groups = 2, .depth = 64, .stages = 5, .wgmma = true, .stream_k = true};
  const Work prefill = dequant(kPrefill, 1024, 5120, 17920, 132);
  BOOST_TEST(prefill.work.tiles == 160U);
  BOOST_TEST(prefill.split().shared == 28U);
  BOOST_TEST(prefill.split().share == 28U * 280 / 132);
  BOOST_TEST((dequant(kPrefill, 1024, 17920, 5120, 132).split().shared == 132U + 560 % 132));
  // Even rounds, and tiles of one step, stay whole.
  BOOST_TEST((gemm(kLarge, 1024, 4096, 4096, 128).split().shared == 0U));
  BOOST_TEST((gemm(kSmall, 64, 1024, 128, 132).split().shared == 0U));
  BOOST_TEST((gemm(kSmall, 64, 1024, 128, 132).blocks() == 8U));
  // A tile has at most as many parts as each of them has units.
  BOOST_TEST((gemm(kSmall, 64, 128, 4096, 132).blocks() == 5U));
  BOOST_TEST(stream_k_shortest_stretch(1) == 1U);
  BOOST_TEST(stream_k_shortest_stretch(30) == 6U);
  BOOST_TEST(stream_k_shortest_stretch(36) == 6U);
  BOOST_TEST(stream_k_shortest_stretch(37) == 7U);
}

// The cost model asks stream_k_cuts_last_alone() what stream_k_split() does.
BOOST_AUTO_TEST_CASE(which_rounds_are_cut) {
  for (const Work& work : all_work()) {
    const StreamKSplit split = work.split();
    if (split.shared == 0) continue;  // all tiles stay whole
    const bool is_alone =
        stream_k_cuts_last_alone(work.work.tiles, split.units(), work.blocks(), work.work.last_round_alone);
    BOOST_REQUIRE_MESSAGE(is_alone == (split.shared < work.blocks()), work.name);
  }
  // 24 tiles of 37 units are 6.7 for each of 132 blocks, between the square root of 37 and the shortest stretch, 7.
  BOOST_TEST(!stream_k_cuts_last_alone(132 + 24, 37, 132, true));
  BOOST_TEST(stream_k_cuts_last_alone(132 + 25, 37, 132, true));
  BOOST_TEST(!stream_k_cuts_last_alone(132 + 25, 37, 132, false));
  // More tiles than 32 bits hold.
  BOOST_TEST(stream_k_cuts_last_alone((u64{1} << 40) * 132 + 25, 37, 132, true));
}

// Units are counted in 32 bits; if these are too few, tiles stay whole.
BOOST_AUTO_TEST_CASE(long_sums) {
  const Work longest = gemm(kSmall, 64, 128 * 131, 0x7ffffff0, 132);
  const StreamKSplit split = longest.split();
  BOOST_TEST(split.shared == 0U);
  u64 steps = 0;
  for (u32 block = 0; block < longest.blocks(); ++block) {
    for (const StreamKSpan& span : spans_of(split, block)) steps += span.end - span.begin;
  }
  BOOST_TEST(steps == u64{131} * longest.work.steps);
}

BOOST_AUTO_TEST_CASE(memory) {
  BOOST_TEST(sm90_part_bytes(kSmall) == 64U * 128 * 4);
  BOOST_TEST(kSm90Warps == 8U);
  BOOST_TEST(dequant_sum_bytes(kMany) == 64U * 256 * 4);
  BOOST_TEST(dequant_sum_warps(kMany) == 16U);
}

BOOST_AUTO_TEST_SUITE_END()
