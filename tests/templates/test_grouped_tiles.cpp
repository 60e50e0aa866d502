// The tiles of a grouped GEMM: what the lanes of a warp write into a block's table is where experts and their tiles
// end, the blocks' walks over it meet every tile once, and tiles hold every row once, each with its expert. Ends that
// decrease or leave the matrix, and counts beyond a capacity, give no row to two experts and none outside.
#include <algorithm>
#include <array>
#include <bit>
#include <boost/test/unit_test.hpp>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "dequant/dequant_experts.cuh"
#include "gemm/gemm_sm90_experts.cuh"
#include "tests/support/random.h"

BOOST_AUTO_TEST_SUITE(test_grouped_tiles)

using namespace ingot;

namespace {

constexpr Sm90Tiling kSingle{.m = 128, .n = 128, .stages = 6, .pingpong = true};
constexpr Sm90Tiling kPairM{.m = 128, .n = 192, .cluster_m = 2, .stages = 5};
constexpr Sm90Tiling kPairN{.m = 192, .n = 64, .cluster_n = 2, .stages = 6, .pingpong = true};
constexpr Sm90Tiling kSmall{.m = 64, .n = 64, .stages = 12, .pingpong = true};

// The table as the kernel makes it: lanes in turn, with what each has of those before it.
struct Table {
  std::vector<u32> row_ends, tile_ends;
  ExpertTable table;

  template <Sm90Tiling T>
  static Table of(const std::vector<i32>& ends, u32 m, u32 n, u32 capacity) {
    const auto experts = static_cast<u32>(ends.size());
    Table made{.row_ends = std::vector<u32>(experts), .tile_ends = std::vector<u32>(experts, 77), .table = {}};
    made.table = {
        .row_ends = made.row_ends.data(), .tile_ends = made.tile_ends.data(), .experts = experts, .capacity = capacity};
    for (u32 i = 0; i < experts; ++i) made.row_ends[i] = expert_row_end(ends[i], m, i, capacity);
    const auto share = [&](u32 lane) {
      return ExpertShare<Sm90ExpertTiles<T>>(made.table, Sm90ExpertTiles<T>{n}, lane);
    };
    std::array<u32, 32> rows{};
    std::array<u32, 32> tiles{};
    u32 row = 0;
    for (u32 lane = 0; lane < 32; ++lane) {
      rows[lane] = row;
      row = std::max(row, share(lane).last_row());
    }
    u32 tile = 0;
    for (u32 lane = 0; lane < 32; ++lane) {
      tiles[lane] = tile;
      tile += share(lane).tiles(rows[lane]);
    }
    for (u32 lane = 0; lane < 32; ++lane) share(lane).write(rows[lane], tiles[lane]);
    return made;
  }
};

// Walks of all blocks, of two warpgroups each if they take turns. Counts for each row and column of tiles how often it
// is met, and by which expert.
template <Sm90Tiling T>
void expect_every_row_once(const std::vector<i32>& ends, u32 m, u32 n, u32 multiprocessors, u32 capacity) {
  const Table made = Table::of<T>(ends, m, n, capacity);
  const ExpertTable& table = made.table;
  std::vector<u32> right(ends.size());
  std::vector<bool> has_expert(m);
  u32 end = 0;
  for (std::size_t e = 0; e < ends.size(); ++e) {
    const u32 begin = capacity == 0 ? end : static_cast<u32>(e) * capacity;
    end = capacity == 0 ? std::max(end, static_cast<u32>(std::clamp<i64>(ends[e], 0, m)))
                        : begin + static_cast<u32>(std::clamp<i64>(ends[e], 0, capacity));
    right[e] = end;
    std::fill(has_expert.begin() + begin, has_expert.begin() + end, true);
  }
  BOOST_TEST_CHECK(made.row_ends == right, boost::test_tools::per_element());
  const u32 columns = sm90_tiles_n(T, n) * T.cluster_n;
  std::vector<u32> met(std::size_t{m} * columns);
  const u32 clusters = sm90_grouped_blocks(T, m, n, table.experts, multiprocessors) / sm90_cluster_size(T);
  for (u32 cluster = 0; cluster < clusters; ++cluster) {
    u32 expert = 0;
    for (u32 tile = cluster; tile < table.tiles(); tile += clusters) {
      expert = table.expert_of(tile, expert);
      for (u32 rank = 0; rank < sm90_cluster_size(T); ++rank) {
        const Sm90TileIndex first = sm90_first_of_tile<T>(table, tile, expert, n, rank);
        BOOST_REQUIRE(first.n % T.n == 0);
        BOOST_REQUIRE((first.m - table.first_row(expert)) % T.m == 0);
        for (u32 row = first.m; row < std::min(first.m + T.m, table.row_ends[expert]); ++row) {
          ++met[std::size_t{row} * columns + first.n / T.n];
        }
      }
    }
  }
  for (std::size_t i = 0; i < met.size(); ++i) {
    BOOST_REQUIRE_MESSAGE(met[i] == (has_expert[i / columns] ? 1U : 0U), "row " << i / columns << " is met " << met[i]);
  }
  // No expert has more tiles than its rows need, and no grid is larger than the tiles that there may be.
  u32 tiles = 0;
  for (u32 e = 0; e < table.experts; ++e) {
    const u32 rows = table.row_ends[e] - table.first_row(e);
    tiles += sm90_tiles_m(T, rows) * sm90_tiles_n(T, n);
  }
  BOOST_TEST(table.tiles() == tiles);
  const u32 most = sm90_grouped_blocks(T, m, n, table.experts, 1U << 20) / sm90_cluster_size(T);
  BOOST_TEST(tiles <= most);
}

void expect_for_all_tilings(const std::vector<i32>& ends, u32 m, u32 n, u32 capacity = 0) {
  expect_every_row_once<kSingle>(ends, m, n, 132, capacity);
  expect_every_row_once<kPairM>(ends, m, n, 7, capacity);
  expect_every_row_once<kPairN>(ends, m, n, 132, capacity);
  expect_every_row_once<kSmall>(ends, m, n, 3, capacity);
}

std::vector<i32> random_ends(std::uint64_t seed, std::size_t experts, i32 m, bool sorted) {
  std::vector<i32> ends;
  for (std::size_t i = 0; i < experts; ++i) {
    ends.push_back(static_cast<i32>(test::random_bits(seed, i) % (static_cast<std::uint64_t>(m) + 1)));
  }
  if (sorted) std::ranges::sort(ends);
  return ends;
}

}  // namespace

BOOST_AUTO_TEST_CASE(tiles_hold_every_row_once) {
  expect_for_all_tilings({1}, 1, 1);
  expect_for_all_tilings({0}, 5, 8);
  expect_for_all_tilings({128, 256, 384}, 384, 128);
  expect_for_all_tilings({0, 0, 129, 129, 300}, 300, 640);
  expect_for_all_tilings({0, 0, 129, 129, 300}, 333, 640);
  for (const std::size_t experts : {2U, 31U, 32U, 33U, 100U, 511U, 512U}) {
    expect_for_all_tilings(random_ends(experts, experts, 2000, true), 2000, 200);
    std::vector<i32> one_each;
    for (std::size_t i = 0; i < experts; ++i) one_each.push_back(static_cast<i32>(i) + 1);
    expect_for_all_tilings(one_each, static_cast<u32>(experts), 64);
  }
}

BOOST_AUTO_TEST_CASE(wrong_ends_stay_within_the_matrix) {
  constexpr i32 kMost = std::numeric_limits<i32>::max();
  expect_for_all_tilings({5, 3, -1, 200, kMost, 7, std::numeric_limits<i32>::min()}, 300, 100);
  for (const std::size_t experts : {3U, 40U, 512U}) {
    expect_for_all_tilings(random_ends(experts, experts, 700, false), 500, 130);
  }
}

BOOST_AUTO_TEST_CASE(experts_with_room_have_as_many_rows_as_counted) {
  expect_for_all_tilings({3}, 5, 8, 5);
  expect_for_all_tilings({0, 5, 200, 130, 0, 1}, 1200, 200, 200);
  expect_for_all_tilings({0, 0, 0}, 30, 64, 10);
  for (const std::size_t experts : {31U, 32U, 33U, 512U}) {
    const auto rows = static_cast<u32>(experts) * 7;
    expect_for_all_tilings(random_ends(experts, experts, 7, false), rows, 130, 7);
    expect_for_all_tilings(random_ends(experts, experts, 9, false), rows, 130, 7);  // some are beyond it
  }
  constexpr i32 kMost = std::numeric_limits<i32>::max();
  expect_for_all_tilings({-1, kMost, 7, std::numeric_limits<i32>::min()}, 800, 100, 200);
}

BOOST_AUTO_TEST_CASE(grids_are_whole_clusters_of_the_tiles_that_there_may_be) {
  static_assert(sm90_grouped_blocks(kSingle, 1, 1, 512, 132) == 1);
  static_assert(sm90_grouped_blocks(kSingle, 256, 128, 2, 132) == 4);
  static_assert(sm90_grouped_blocks(kSingle, 8192, 4096, 8, 132) == 132);
  static_assert(sm90_grouped_blocks(kPairM, 300, 192, 3, 132) == 8);
  static_assert(sm90_grouped_blocks(kPairM, 8192, 4096, 8, 131) == 130);
  // 2^31 rows or so.
  static_assert(sm90_grouped_blocks(kSmall, 0x7ffffe00, 64, 512, 132) == 132);
  static_assert(sm90_expert_box(kPairN) == 48 && sm90_expert_box(kSmall) == 16);
}

// Near the most rows, where sums of 32 bits with a sign would be below 0.
BOOST_AUTO_TEST_CASE(rows_up_to_2_to_the_31) {
  constexpr u32 kMost = 0x7ffffdffU;  // as the host takes them
  for (const u32 capacity : {0U, kMost / 2}) {
    const i32 last = capacity == 0 ? static_cast<i32>(kMost) : static_cast<i32>(capacity);
    const u32 rows = capacity == 0 ? kMost : 2 * capacity;
    const Table made = Table::of<kPairM>({capacity == 0 ? last - 1000 : 5, last}, rows, 192, capacity);
    const u32 first = capacity == 0 ? rows - 1000 : capacity;
    BOOST_TEST(made.table.first_row(1) == first);
    BOOST_TEST(made.table.row_ends[1] == rows);
    const u32 tile = made.table.tiles() - 1;
    BOOST_TEST(made.table.expert_of(tile, 0) == 1);
    const Sm90TileIndex at = sm90_first_of_tile<kPairM>(made.table, tile, 1, 192, 0);
    BOOST_TEST(at.m == first + (rows - first - 1) / 256 * 256);
  }
}

// The weight and scale_inv of an expert, in bytes, past 2^32.
BOOST_AUTO_TEST_CASE(decoded_weights_past_2_to_the_32) {
  std::byte memory{};
  constexpr u64 kBytes = (u64{1} << 31U) + 3;
  const void* const of_last = operand_of_expert<true>(&memory, kBytes, {.index = 511});
  BOOST_TEST(std::bit_cast<std::uintptr_t>(of_last) - std::bit_cast<std::uintptr_t>(&memory) == 511 * kBytes);
  BOOST_TEST(operand_of_expert<false>(&memory, kBytes, {.index = 511}) == &memory);
}

BOOST_AUTO_TEST_SUITE_END()
