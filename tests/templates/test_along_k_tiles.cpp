// The steps of a grouped GEMM along K: the columns that count in an expert's steps are its own, once each, wherever it
// begins and ends; the masks of bytes; and the grid.
#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "gemm/gemm_sm90_along_k.cuh"
#include "tests/support/random.h"

BOOST_AUTO_TEST_SUITE(test_along_k_tiles)

using namespace ingot;

namespace {

constexpr i32 kMost = std::numeric_limits<i32>::max();

// The experts' steps as the kernel makes them. counted: how often each column counts.
template <u32 Step>
std::vector<u32> columns_of_steps(const std::vector<i32>& ends, u32 k) {
  std::vector<u32> counted(k);
  u32 before = 0;
  for (const i32 end : ends) {
    const Sm90Stretch<Step> stretch(before, sm90_column_end(end, k));
    before = sm90_column_end(end, k);
    BOOST_TEST(stretch.steps() >= 1U);
    BOOST_TEST(stretch.column(0) % (Step / 2) == 0U);
    for (u32 step = 0; step < stretch.steps(); ++step) {
      const u32 from = stretch.from(step);
      const u32 to = stretch.to(step);
      BOOST_TEST(to <= Step);
      BOOST_TEST((stretch.is_empty() ? from == to : from < to));
      BOOST_TEST(stretch.is_whole(step) == (from == 0 && to == Step));
      // Only the first and the last step may hold other experts' columns.
      BOOST_TEST((stretch.is_whole(step) || step == 0 || step == stretch.steps() - 1));
      for (u32 i = from; i < to; ++i) ++counted.at(stretch.column(step) + i);
    }
  }
  return counted;
}

template <u32 Step>
void expect_every_column_once(const std::vector<i32>& ends, u32 k) {
  const std::vector<u32> counted = columns_of_steps<Step>(ends, k);
  const auto end = static_cast<std::size_t>(ends.back());
  for (std::size_t i = 0; i < counted.size(); ++i) {
    BOOST_REQUIRE_MESSAGE(counted[i] == (i < end ? 1U : 0U), "column " << i << " counts " << counted[i] << " times");
  }
}

void expect_for_both_steps(const std::vector<i32>& ends, u32 k) {
  expect_every_column_once<kSm90Depth>(ends, k);
  expect_every_column_once<kSm90Step16>(ends, k);
}

std::vector<i32> random_ends(std::uint64_t seed, std::size_t experts, u32 k) {
  std::vector<i32> ends;
  for (std::size_t i = 0; i < experts; ++i) ends.push_back(static_cast<i32>(test::random_bits(seed, i) % (k + 1)));
  return ends;
}

}  // namespace

BOOST_AUTO_TEST_CASE(steps_hold_every_column_once) {
  expect_for_both_steps({1}, 1);
  expect_for_both_steps({0}, 5);
  expect_for_both_steps({0, 0, 0}, 0);
  expect_for_both_steps({128, 256, 384}, 384);
  expect_for_both_steps({63, 64, 65, 127, 128, 129, 255, 256, 257}, 300);
  expect_for_both_steps({0, 0, 129, 129, 300}, 300);
  for (const std::size_t experts : {1U, 2U, 100U, 512U}) {
    std::vector<i32> ends = random_ends(experts, experts, 3000);
    std::ranges::sort(ends);
    expect_for_both_steps(ends, 3000);
    for (std::size_t e = 0; e < experts; ++e) ends[e] = static_cast<i32>(e) + 1;
    expect_for_both_steps(ends, static_cast<u32>(experts) + 7);
  }
}

namespace {

// The slots of each expert's steps as the kernel makes them: how often each counts.
std::vector<u32> slots_of_steps(const std::vector<i32>& ends, u32 slots) {
  constexpr u32 kStep = kSm90Depth;
  const auto experts = static_cast<u32>(ends.size());
  std::vector<u32> counted(slots);
  u32 before = 0;
  for (u32 e = 0; e < experts; ++e) {
    const u32 end = sm90_slots_end(ends[e], slots * kStep, experts);
    const auto stretch = Sm90Stretch<kStep>::of_slots(before, end, e);
    BOOST_TEST(!stretch.is_empty());
    BOOST_TEST(stretch.column(0) == stretch.begin);
    for (u32 step = 0; step < stretch.steps(); ++step) {
      BOOST_TEST(stretch.is_whole(step));
      ++counted.at(stretch.column(step) / kStep);
    }
    before = end;
  }
  return counted;
}

}  // namespace

// Every expert has its own slots, at least one, and as many as it has blocks of 128 rows.
BOOST_AUTO_TEST_CASE(slots_are_of_one_expert) {
  const auto expect = [](const std::vector<i32>& ends, u32 rows) {
    const auto experts = static_cast<u32>(ends.size());
    const auto slots = static_cast<u32>(ExpertSlots::count(rows, experts));
    BOOST_TEST(ExpertSlots::most_rows(slots, experts) >= i64{rows});
    const std::vector<u32> counted = slots_of_steps(ends, slots);
    u32 expected = 0;
    for (u32 e = 0; e < experts; ++e) {
      const i64 begin = e == 0 ? 0 : ends[e - 1];
      const i64 first = ExpertSlots::first(begin, e);
      const i64 own = ExpertSlots::of_rows(ends[e] - begin);
      expected += static_cast<u32>(own);
      for (i64 slot = first; slot < first + own; ++slot) BOOST_TEST(counted.at(static_cast<std::size_t>(slot)) == 1U);
    }
    u32 all = 0;
    for (const u32 each : counted) all += each;
    BOOST_TEST(all == expected);
  };
  expect({1}, 1);
  expect({0}, 5);
  expect({0, 0, 0}, 0);
  expect({128, 256, 384}, 384);
  expect({63, 64, 65, 127, 128, 129, 255, 256, 257}, 300);
  expect({0, 0, 129, 129, 300}, 300);
  for (const std::size_t experts : {1U, 2U, 100U, 512U}) {
    std::vector<i32> ends = random_ends(experts, experts, 3000);
    std::ranges::sort(ends);
    expect(ends, 3000);
  }
}

// Whatever device memory holds, steps stay within the matrices and their number is bounded.
BOOST_AUTO_TEST_CASE(wrong_ends_stay_within_the_matrices) {
  constexpr u32 kColumns = 300;
  std::vector<std::vector<i32>> all{{5, 3, -1, 200, kMost, 7, std::numeric_limits<i32>::min()}, {kMost}, {-1, -1}};
  for (const std::size_t experts : {3U, 40U, 512U}) all.push_back(random_ends(experts, experts, 2 * kColumns));
  for (const std::vector<i32>& ends : all) {
    columns_of_steps<kSm90Depth>(ends, kColumns);  // .at() refuses a column outside
    columns_of_steps<kSm90Step16>(ends, kColumns);
    slots_of_steps(ends, static_cast<u32>(ExpertSlots::count(kColumns, static_cast<i64>(ends.size()))));
  }
  static_assert(Sm90Stretch<128>(200, 100).is_empty() && Sm90Stretch<128>(200, 100).steps() == 1);
}

// Against each byte on its own.
BOOST_AUTO_TEST_CASE(masks_have_the_bytes_within) {
  for (u32 from = 0; from <= 128; ++from) {
    for (u32 to = from; to <= 128; ++to) {
      for (u32 at = 0; at < 128; at += 4) {
        u32 expected = 0;
        for (u32 byte = 0; byte < 4; ++byte) {
          if (at + byte >= from && at + byte < to) expected |= 0xffU << 8 * byte;
        }
        BOOST_REQUIRE(sm90_bytes_within(at, from, to) == expected);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(grids_are_whole_clusters_of_all_experts_tiles) {
  constexpr Sm90Tiling kSingle{.m = 128, .n = 128, .stages = 6, .pingpong = true};
  constexpr Sm90Tiling kPair{.m = 128, .n = 192, .cluster_m = 2, .stages = 5};
  static_assert(sm90_along_k_tiles(kSingle, 300, 200) == 6 && sm90_along_k_tiles(kPair, 300, 200) == 4);
  static_assert(sm90_along_k_blocks(kSingle, 1, 1, 1, 132) == 1);
  static_assert(sm90_along_k_blocks(kSingle, 300, 200, 3, 132) == 18);
  static_assert(sm90_along_k_blocks(kPair, 300, 200, 3, 132) == 24);
  static_assert(sm90_along_k_blocks(kPair, 4096, 4096, 8, 131) == 130);
  // 2^31 columns or so, and outputs of 2^31 rows together.
  static_assert(Sm90Stretch<128>(0x7ffffc80, 0x7ffffdff).steps() == 3 &&
                Sm90Stretch<128>(0x7ffffc80, 0x7ffffdff).to(2) == 127);
  static_assert(sm90_along_k_tiles(kSingle, 1U << 22, 128) * 511 == 511U << 15 &&
                sm90_along_k_blocks(kSingle, 1U << 22, 128, 511, 132) == 132);
}

// What is added to the block's memory has its own place, and barriers are at multiples of their size.
BOOST_AUTO_TEST_CASE(barriers_are_within_the_shared_memory) {
  for (const u32 stages : {2U, 5U, 12U, 16U}) {
    GemmSm90Config config{.tiling = {.m = 64, .n = 64, .stages = stages, .pingpong = true}, .experts = true};
    config.along_k = true;
    BOOST_TEST(sm90_landed_offset(config) % 8 == 0U);
    BOOST_TEST(sm90_landed_offset(config) >= sm90_experts_offset(config) + 4 * kSm90MostExperts);
    BOOST_TEST(sm90_landed_offset(config) + 8 * stages <= sm90_shared_bytes(config));
  }
}

BOOST_AUTO_TEST_SUITE_END()
