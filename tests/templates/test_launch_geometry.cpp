// The launch geometry that host and kernels share covers every element exactly once, for ragged shapes and huge ones.
// (test_kernels_emulated tests that the kernels follow it.)
#include "cast/amax.cuh"
#include "cast/amax_history.cuh"
#include "cast/amax_scales.cuh"
#include "cast/cast_rows.cuh"
#include "cast/cast_rows_wide.cuh"
#include "cast/cast_tile_shared.cuh"
#include "cast/column_sum.cuh"
#include "cast/elementwise.cuh"
#include "cast/elementwise_maxima.cuh"
#include "gemm/gemm_simt.cuh"
#include "gemm/gemm_sm90_tiling.cuh"
#include "norm/norm_backward_launch.cuh"
#include "norm/norm_backward_wide.cuh"
#include "norm/norm_rows.cuh"
#include "norm/norm_rows_full.cuh"
#include "norm/norm_rows_wide.cuh"
#include "quantize/quantize_mx.cuh"

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <set>
#include <vector>

BOOST_AUTO_TEST_SUITE(test_launch_geometry)

using namespace ingot;

namespace {

const std::vector<i64> kSizes{1,    2,    31,   32,   33,    127,   128,     129,
                              1000, 4096, 4097, 8192, 16384, 65536, 1 << 20, i64{1} << 33};
constexpr i64 kMaxGrid = 0x7fffffff;
constexpr i64 kMaxGridDown = 65535;  // blocks loop beyond that

}  // namespace

BOOST_AUTO_TEST_CASE(chunks_cover_all_rows) {
  for (const i64 rows : kSizes) {
    const i64 chunk = rows_per_chunk(rows);
    const i64 count = chunk_count(rows);
    BOOST_TEST(chunk >= kMinRowsPerChunk);
    BOOST_TEST((chunk & (chunk - 1)) == 0);
    BOOST_TEST(count * chunk >= rows);
    BOOST_TEST((count - 1) * chunk < rows);  // none is empty
    BOOST_TEST((chunk == kMinRowsPerChunk || count <= 4 * chunk));
  }
  static_assert(rows_per_chunk(0) == 32 && chunk_count(0) == 0);
  static_assert(rows_per_chunk(4096) == 32 && rows_per_chunk(4097) == 64 && rows_per_chunk(16385) == 128);
}

BOOST_AUTO_TEST_CASE(column_sum_strips_cover_all_columns) {
  for (const i64 bytes : {2, 4}) {
    for (const i64 cols : kSizes) {
      const i64 strips = ColumnSumPartialsLaunch::strips(cols, bytes);
      BOOST_TEST(strips * ColumnSumPartialsLaunch::cols_per_block(bytes) >= cols);
      BOOST_TEST((strips - 1) * ColumnSumPartialsLaunch::cols_per_block(bytes) < cols);
      BOOST_TEST(ColumnSumPartialsLaunch::grid(100, cols, bytes) == strips * chunk_count(100));
      BOOST_TEST(ColumnSumFinishLaunch::grid(cols) * ColumnSumFinishLaunch::kCols >= cols);
    }
  }
}

BOOST_AUTO_TEST_CASE(amax_history_blocks_cover_all_slots) {
  using Launch = AmaxHistoryLaunch;
  for (const i64 slots : kSizes) {
    BOOST_TEST(Launch::grid(slots) * Launch::kSlots >= slots);
    BOOST_TEST((Launch::grid(slots) - 1) * Launch::kSlots < slots);
  }
  static_assert(Launch::kSlots * 32 == Launch::kThreads);
}

BOOST_AUTO_TEST_CASE(amax_scales_blocks_cover_all_maxima) {
  using Launch = AmaxScalesLaunch;
  for (const i64 count : kSizes) {
    BOOST_TEST(Launch::grid(count) * Launch::kThreads >= count);
    BOOST_TEST((Launch::grid(count) - 1) * Launch::kThreads < count);
  }
}

// Repeats the walk of amax_partials in integers: some block takes every segment of every row, once.
BOOST_AUTO_TEST_CASE(amax_blocks_share_all_segments) {
  using Launch = AmaxPartialsLaunch;
  for (const i64 rows : {1, 3, 100, 700}) {
    for (const i64 cols : {1, 4096, 8192, 8193, 11008, 30000, 9000000}) {
      for (const bool computed : {false, true}) {
        const u32 threads = Launch::threads(cols, 2, computed);
        BOOST_TEST(threads % 32 == 0U);
        BOOST_TEST((computed ? threads <= Launch::kMaxThreads : threads == Launch::kMaxThreads));
        const i64 segments = ceil_div(cols, Launch::segment(threads, 2));
        BOOST_TEST(segments == ceil_div(cols, Launch::segment(Launch::kMaxThreads, 2)));
        const i64 grid = Launch::grid(rows, cols, threads, 2);
        BOOST_TEST(grid >= 1);
        BOOST_TEST(grid <= Launch::kMaxBlocks);
        std::set<std::pair<i64, i64>> seen;
        for (i64 block = 0; block < grid; ++block) {
          i64 row = block / segments;
          i64 segment = block % segments;
          while (row < rows) {
            BOOST_REQUIRE(seen.emplace(row, segment).second);
            row += grid / segments;
            segment += grid % segments;
            if (segment >= segments) {
              segment -= segments;
              ++row;
            }
          }
        }
        BOOST_TEST(static_cast<i64>(seen.size()) == rows * segments);
      }
    }
  }
  static_assert(Launch::threads(4096, 2, true) == 128 && Launch::threads(8192, 2, true) == 256);
  static_assert(Launch::threads(11008, 2, true) == 192 && Launch::threads(11008, 2, false) == 256);
}

// Likewise for amax_tiles: some block takes every step of every strip. If there are rows enough, all blocks are
// resident at once and leave at most a fifth of the GPU idle, or there are so many that their last wave is a small part
// of the whole.
BOOST_AUTO_TEST_CASE(amax_tiles_blocks_share_all_steps) {
  using Launch = AmaxTilesLaunch;
  static_assert(Launch::grid(8192, 11008, 528) == 43 * 12 && Launch::grid(8192, 152064, 528) == 594 * 4);
  static_assert(resident_blocks(64, Launch::kThreads) == 4 && resident_blocks(65, Launch::kThreads) == 3);
  for (const i64 rows : {1, 64, 65, 3000, 8192}) {
    for (const i64 cols : {1, 256, 4096, 11008, 51200, 76800, 152064, 200000}) {
      const i64 strips = ceil_div(cols, Launch::kCols);
      const i64 grid = Launch::grid(rows, cols, 528);
      BOOST_TEST(grid % strips == 0);
      const bool one_wave = grid <= 528;
      const bool has_rows_enough = grid < strips * ceil_div(rows, Launch::kRows);
      if (has_rows_enough) BOOST_TEST((one_wave ? grid * 5 >= 528 * 4 : grid >= 4 * 528));
      i64 steps = 0;
      for (i64 first = 0; first < grid / strips; ++first) {
        BOOST_TEST(first * Launch::kRows < rows);  // none is idle
        for (i64 row = first * Launch::kRows; row < rows; row += grid / strips * Launch::kRows) ++steps;
      }
      BOOST_TEST(steps == ceil_div(rows, Launch::kRows));
    }
  }
}

BOOST_AUTO_TEST_CASE(gapless_matrices_are_one_row) {
  const auto of = [](i64 rows, i64 cols, i64 stride) {
    return flattened(
        SourceParams{.input = nullptr, .rows = rows, .cols = cols, .input_stride = stride, .operands = {}});
  };
  BOOST_TEST(of(7, 10, 10).rows == 1);
  BOOST_TEST(of(7, 10, 10).cols == 70);
  BOOST_TEST(of(1, 10, 99).cols == 10);
  BOOST_TEST(of(7, 10, 11).rows == 7);
  BOOST_TEST(of(7, 10, 11).input_stride == 11);
}

BOOST_AUTO_TEST_CASE(row_groups) {
  for (const i64 cols : kSizes) {
    const u32 per_row = RowsLaunch::threads_per_row(cols);
    const u32 threads = RowsLaunch::threads(cols);
    BOOST_TEST((per_row & (per_row - 1)) == 0U);
    BOOST_TEST(per_row >= 32U);
    BOOST_TEST(per_row <= RowsLaunch::kMaxThreads);
    BOOST_TEST(threads % per_row == 0U);
    BOOST_TEST(threads / 32 <= kMaxWarps);
    for (const i64 rows : kSizes) {
      const i64 grid = RowsLaunch::grid(rows, cols);
      BOOST_TEST(grid >= 1);
      BOOST_TEST(grid <= kMaxGrid);  // blocks loop beyond that
      BOOST_TEST((grid == kMaxGrid || grid * RowsLaunch::rows_per_block(cols) >= rows));
    }
  }
  static_assert(RowsLaunch::threads_per_row(8192) == 512);
  static_assert(RowsLaunch::threads_per_row(4096) == 256);
}

BOOST_AUTO_TEST_CASE(cast_rows_stay_in_registers) {
  for (const u64 bytes : {2, 4}) {
    for (const i64 cols : kSizes) {
      const u32 log2 = CastRowsLaunch::threads_log2(cols, bytes);
      const u32 threads = CastRowsLaunch::threads(log2);
      BOOST_TEST(log2 >= 5U);
      BOOST_TEST(log2 <= CastRowsLaunch::kMaxThreadsLog2);
      BOOST_TEST(threads % (1U << log2) == 0U);
      BOOST_TEST(threads <= CastRowsLaunch::kMaxThreads);
      if (cols * i64{static_cast<i64>(bytes)} <= 32768) {
        BOOST_TEST((i64{kVec8} * CastRowsLaunch::vec8s(bytes) << log2) >= cols);
      }
      for (const i64 rows : kSizes) {
        const i64 grid = CastRowsLaunch::grid(rows, log2);
        BOOST_TEST(grid >= 1);
        BOOST_TEST(grid <= kMaxGrid);  // blocks loop beyond that
        BOOST_TEST((grid == kMaxGrid || grid * (threads >> log2) >= rows));
      }
    }
  }
  BOOST_TEST(CastRowsLaunch::threads_log2(8192, 2) == 8U);
  BOOST_TEST(CastRowsLaunch::threads_log2(8193, 2) == 9U);
}

// All elements have a place, in registers or slots, and only the last of a thread's vec8s in registers may be outside
// the row.
BOOST_AUTO_TEST_CASE(cast_rows_wide_blocks_hold_the_row) {
  using Launch = CastRowsWideLaunch;
  for (const u64 bytes : {2, 4}) {
    const u32 kept = CastRowsLaunch::vec8s(bytes);
    for (i64 cols = Launch::min_cols(bytes) + 7; cols <= Launch::kept_cols(bytes); cols += 8) {
      const CastRowsWideShape shape = Launch::shape({.rows = 1, .cols = cols, .value_bytes = bytes});
      BOOST_REQUIRE(shape.blocks == 1U);
      BOOST_REQUIRE(shape.threads % 32 == 0U);
      BOOST_REQUIRE(shape.threads <= Launch::kMaxThreads);
      BOOST_REQUIRE(i64{kept} * shape.threads * kVec8 >= cols);
      BOOST_REQUIRE(i64{kept - 1} * shape.threads * kVec8 <= cols);
    }
  }
  for (const u64 bytes : {2, 4}) {
    for (const u32 block_shared : {99 * 1024, 163 * 1024, 227 * 1024}) {
      for (const bool clusters : {false, true}) {
        for (const bool computed : {false, true}) {
          for (const i64 rows : {1, 40, 1000}) {
            CastRowsWideCase of{.rows = rows,
                                .cols = Launch::kept_cols(bytes),
                                .value_bytes = bytes,
                                .computed = computed,
                                .block_shared = block_shared,
                                .multiprocessors = 132,
                                .clusters = clusters};
            // The widest rows that two blocks of a multiprocessor hold.
            const i64 room = dynamic_shared_room(block_shared, 2) - i64{sizeof(CastRowsWideShared)};
            const i64 step = i64{Launch::kMaxThreads} * kVec8;
            const i64 widest = (clusters ? kMaxClusterBlocks : 1) * (room / (step * static_cast<i64>(bytes)) * step);
            for (of.cols += 8; of.cols <= widest; of.cols += 8) {
              const CastRowsWideShape shape = Launch::shape(of);
              BOOST_REQUIRE(shape.blocks != 0U);
              BOOST_REQUIRE(shape.blocks <= (clusters ? kMaxClusterBlocks : 1U));
              BOOST_REQUIRE(shape.blocks * shape.threads / 32 <= kMaxClusterWarps);
              const i64 slots = (shape.shared_bytes - sizeof(CastRowsWideShared)) / (kVec8 * bytes);
              BOOST_REQUIRE(i64{shape.blocks} * slots * kVec8 >= of.cols);
              BOOST_REQUIRE(slots % shape.threads == 0);
              BOOST_REQUIRE(shape.shared_bytes <= dynamic_shared_room(block_shared, shape.threads == 512 ? 2 : 3));
            }
            of.cols = max_of(widest, Launch::kept_cols(bytes)) + 8;
            BOOST_TEST(Launch::shape(of).blocks == 0U);
          }
        }
      }
    }
  }
  constexpr auto shape = [](i64 rows, i64 cols, bool computed, bool many_inputs = false) {
    return Launch::shape({.rows = rows,
                          .cols = cols,
                          .value_bytes = 2,
                          .computed = computed,
                          .many_inputs = many_inputs,
                          .block_shared = 227 * 1024,
                          .multiprocessors = 132,
                          .clusters = true});
  };
  static_assert(shape(6144, 8192, true).threads == 256 && shape(3000, 11008, true).threads == 352);
  static_assert(shape(6144, 18944, true).threads == 256 && shape(6144, 28672, true).threads == 384);
  static_assert(shape(6144, 28672, true, true).threads == 256);
  static_assert(shape(2048, 53248, true).blocks == 2 && shape(2048, 53248, true).threads == 256);
  static_assert(shape(2048, 53248, false).blocks == 1 && shape(2048, 53248, false).threads == 512);
  static_assert(shape(2048, 65536, false).blocks == 2);
  // Fewer rows than multiprocessors.
  static_assert(shape(16, 28672, true).blocks == 8 && shape(64, 28672, true).blocks == 2);
  static_assert(shape(67, 28672, true).blocks == 1);
  static_assert(Launch::min_cols(2) == 3073 && Launch::min_cols(4) == 1537);
}

BOOST_AUTO_TEST_CASE(norm_rows_share_blocks) {
  for (const i64 cols : kSizes) {
    const u32 per_row = NormRowsLaunch::threads_per_row(cols);
    const u32 threads = NormRowsLaunch::threads(cols);
    BOOST_TEST((per_row & (per_row - 1)) == 0U);
    BOOST_TEST(per_row >= 32U);
    BOOST_TEST(threads <= NormRowsLaunch::kMaxThreads);
    BOOST_TEST(threads == NormRowsLaunch::rows_per_block(cols) * per_row);
    for (const bool slots : {false, true}) {
      for (const i64 rows : kSizes) {
        const i64 grid = NormRowsLaunch::grid(rows, cols, slots, 132);
        BOOST_TEST(grid >= 1);         // for the scale_inv of a given scale
        BOOST_TEST(grid <= kMaxGrid);  // blocks loop beyond that
        BOOST_TEST((grid == 1 || (grid - 1) * NormRowsLaunch::rows_per_block(cols) < rows));  // none is without a row
        if (slots) BOOST_TEST(grid * threads <= 132 * 1024);
      }
    }
    // As many blocks as the registers allow fit the shared memory of any target.
    BOOST_TEST(1024 / threads * (NormRowsLaunch::slot_bytes(cols) + 2048) <= 100 * 1024);
  }
  static_assert(NormRowsLaunch::grid(1000, 4096, true, 4) == 32 && NormRowsLaunch::grid(1000, 4096, false, 4) == 1000);
  // Codes alone, or values too; of LayerNorm, or not.
  static_assert(NormRowsLaunch::has_slots(1024, 2, true, false, false));
  static_assert(!NormRowsLaunch::has_slots(4096, 2, true, false, true));
  static_assert(NormRowsLaunch::has_slots(8192, 2, true, false, true));
  static_assert(!NormRowsLaunch::has_slots(8192, 2, true, true, false));
  static_assert(NormRowsLaunch::has_slots(5120, 2, true, true, false));  // where half of the threads have less to do
  static_assert(NormRowsLaunch::has_slots(16384, 2, true, true, true));
  static_assert(!NormRowsLaunch::has_slots(16392, 2, true, true, false));
  static_assert(!NormRowsLaunch::has_slots(8192, 4, true, false, false));
  static_assert(NormRowsLaunch::one_turn(1024, 2, true, 0) && NormRowsLaunch::one_turn(16384, 2, true, 0));
  static_assert(!NormRowsLaunch::one_turn(1024, 2, true, 1) && !NormRowsLaunch::one_turn(1024, 2, false, 0));
  static_assert(!NormRowsLaunch::one_turn(1024, 4, true, 0) && !NormRowsLaunch::one_turn(16392, 2, true, 0));
  static_assert(NormRowsLaunch::threads_per_row(0) == 32);
  static_assert(NormRowsLaunch::threads_per_row(8192) == 256 && NormRowsLaunch::threads_per_row(8193) == 512);
}

BOOST_AUTO_TEST_CASE(norm_rows_full_fill_their_threads) {
  using Launch = NormRowsFullLaunch;
  std::vector<i64> taken;
  for (i64 cols = 0; cols <= 4 * Launch::kMaxCols; ++cols) {
    BOOST_REQUIRE((!Launch::takes(cols, 2, false) && !Launch::takes(cols, 4, true)));
    if (!Launch::takes(cols, 2, true)) continue;
    taken.push_back(cols);
    BOOST_TEST(Launch::blocks_at_once(cols) * NormRowsLaunch::threads(cols) == Launch::kThreadsAtOnce);
    BOOST_TEST(Launch::blocks_at_once(cols) * (NormRowsLaunch::slot_bytes(cols) + 2048) <= 99 * 1024);
  }
  BOOST_TEST((taken == std::vector<i64>{1024, 2048, 4096, 8192}));
  static_assert(Launch::grid(8192, 8192, 132) == 396 && Launch::grid(7, 8192, 132) == 7);
  static_assert(Launch::grid(8192, 1024, 132) == 792 && Launch::grid(9, 1024, 132) == 3);
}

BOOST_AUTO_TEST_CASE(norm_rows_wide_pairs_hold_the_row) {
  using Launch = NormRowsWideLaunch;
  using Slots = NormRowsWideSlots;
  constexpr u32 kLeastShared = 99 * 1024;
  for (i64 cols = 8; cols <= 2 * Launch::kMaxCols; cols += 8) {
    BOOST_REQUIRE(Launch::takes(cols, 2, true) == (cols > 8192 && cols <= 16384));
    BOOST_REQUIRE((!Launch::takes(cols, 2, false) && !Launch::takes(cols, 4, true)));
    if (!Launch::takes(cols, 2, true)) continue;
    const u32 vec8s = Launch::vec8s(cols);
    BOOST_REQUIRE((vec8s >= Launch::kMinVec8s && vec8s <= Launch::kMaxVec8s));
    BOOST_REQUIRE(i64{vec8s} * Launch::kBlocks * Launch::kThreads * kVec8 == Launch::kernel_cols(cols));
    BOOST_REQUIRE((Launch::kernel_cols(cols) >= cols && Launch::kernel_cols(cols) < cols + Launch::kColsPerStep));
    const u32 rows = Slots::rows(true, true, 9);
    BOOST_REQUIRE(Slots::bytes(vec8s, rows) <= kLeastShared);
    BOOST_REQUIRE(Slots::bytes(vec8s, rows) >= rows * cols * 2 / Launch::kBlocks);
  }
  static_assert(Launch::kernel_cols(8200) == 12288 && Launch::kernel_cols(16384) == 16384);
  static_assert(Slots::rows(true, true, 9) == 3 && Slots::rows(true, false, 10) == 2 &&
                Slots::rows(false, true, 9) == 1);
  static_assert(Slots::rows(true, true, 12) == 1);
}

BOOST_AUTO_TEST_CASE(norm_backward_wide_clusters_hold_the_row) {
  using Launch = NormBackwardWideLaunch;
  for (i64 cols = Launch::kMinCols + 7; cols <= Launch::kMaxCols; cols += 8) {
    const u32 threads = Launch::threads(cols);
    BOOST_REQUIRE(threads <= Launch::kMaxThreads);
    BOOST_REQUIRE(threads / 32 >= kNormWarpsOfBlock);
    BOOST_REQUIRE(i64{threads} * Launch::kBlocks * Launch::kVec8s * kVec8 >= cols);
    BOOST_REQUIRE(i64{threads - 32} * Launch::kBlocks * Launch::kVec8s * kVec8 < cols);
  }
  static_assert(Launch::threads(13824) == 224 && Launch::threads(16384) == 256);
  static_assert(Launch::kMinCols == 8193 && Launch::kMaxCols == 16384);
}

BOOST_AUTO_TEST_CASE(norm_backward_chunks_cover_all_rows) {
  using Launch = NormBackwardLaunch;
  for (const i64 cols : kSizes) {
    BOOST_TEST(Launch::groups(cols) * Launch::threads_per_row(cols) == Launch::kThreads);
    for (const i64 rows : kSizes) {
      const i64 chunk = Launch::rows_per_chunk(rows, cols);
      const i64 chunks = Launch::chunks(rows, cols);
      BOOST_TEST(chunk % Launch::groups(cols) == 0);
      BOOST_TEST(chunks <= Launch::kMaxChunks);
      BOOST_TEST(chunks * chunk >= rows);
      BOOST_TEST((chunks - 1) * chunk < rows);  // none is empty
    }
  }
  static_assert(Launch::rows_per_chunk(8192, 4096) == 64 && Launch::chunks(8192, 4096) == 128);
}

// Two rows of a multiprocessor have room in its shared memory, and a thread has registers for all of its columns.
BOOST_AUTO_TEST_CASE(norm_backward_slots_hold_the_row) {
  using Launch = NormBackwardLaunch;
  constexpr u32 kKiB = 1024;
  for (const u32 block_shared : {99 * kKiB, 163 * kKiB, 227 * kKiB}) {
    for (i64 cols = 8; cols <= 70000; cols += 8) {
      for (const bool centred : {false, true}) {
        BOOST_REQUIRE(Launch::slot_rows(cols, true, centred, 4, block_shared) == 0U);
        for (const bool affine : {false, true}) {
          const u32 rows = Launch::slot_rows(cols, affine, centred, 2, block_shared);
          if (rows == 0) continue;
          BOOST_REQUIRE((cols > 8192 && rows * (affine ? 1U : 2U) >= 2U));
          const u32 bytes = Launch::shared_bytes(cols, affine, centred, 2, rows) + kKiB;  // with static shared memory
          BOOST_REQUIRE(bytes >= rows * cols * 4);
          BOOST_REQUIRE(bytes <= block_shared);
          if (!affine) BOOST_REQUIRE(2 * (bytes + kKiB) <= block_shared + kKiB);
          BOOST_REQUIRE(i64{Launch::threads(cols, affine)} * Launch::slot_vec8s(centred, affine) * 8 >= cols);
        }
      }
    }
  }
  constexpr u32 kHopper = 227 * kKiB;
  static_assert(Launch::slot_rows(8192, true, false, 2, kHopper) == 0);
  static_assert(Launch::slot_rows(28672, true, false, 2, kHopper) == 2);
  static_assert(Launch::slot_rows(28680, true, false, 2, kHopper) == 0);
  static_assert(Launch::slot_rows(16384, true, true, 2, kHopper) == 2);
  static_assert(Launch::slot_rows(16392, true, true, 2, kHopper) == 0);
  static_assert(Launch::slot_rows(13824, false, true, 2, kHopper) == 2);
  static_assert(Launch::slot_rows(28672, false, true, 2, kHopper) == 1);
  static_assert(Launch::slot_rows(28680, false, true, 2, kHopper) == 0);
}

// Without sums over rows, blocks take one row per group, and more where the GPU would not run all blocks at once.
BOOST_AUTO_TEST_CASE(norm_backward_blocks_cover_all_rows) {
  using Launch = NormBackwardLaunch;
  for (const i64 cols : kSizes) {
    BOOST_TEST(Launch::threads(cols, true) == Launch::kThreads);
    BOOST_TEST(Launch::threads(cols, false) % Launch::threads_per_row(cols) == 0U);
    for (const i64 rows : kSizes) {
      BOOST_TEST(Launch::grid(rows, cols, true) == Launch::chunks(rows, cols));
      for (const bool affine : {false, true}) {
        const NormBackwardDivision division = Launch::division(rows, cols, affine);
        BOOST_TEST(1U << division.threads_log2 == Launch::threads_per_row(cols));
        BOOST_TEST(1U << (division.threads_log2 + division.groups_log2) == Launch::threads(cols, affine));
        BOOST_TEST(division.rows_per_block == Launch::rows_per_block(rows, cols, affine));
      }
      const i64 per_block = Launch::rows_per_block(rows, cols, false);
      const i64 blocks = Launch::grid(rows, cols, false);
      const i64 groups = Launch::threads(cols, false) / Launch::threads_per_row(cols);
      const NormBackwardDivision plain = Launch::division(rows, cols, false);
      BOOST_TEST(Launch::one_row(plain, cols, false, 2, true) == (cols <= 8192 && per_block == groups));
      BOOST_TEST(!Launch::one_row(Launch::division(rows, cols, true), cols, true, 2, true));
      BOOST_TEST(!Launch::one_row(plain, cols, false, 4, true));
      BOOST_TEST(!Launch::one_row(plain, cols, false, 2, false));
      BOOST_TEST(per_block % groups == 0);
      const i64 most = Launch::kThreadsAtOnce / Launch::threads(cols, false);
      BOOST_TEST((per_block == groups || blocks > most / 2));
      BOOST_TEST(blocks <= most);
      BOOST_TEST(blocks * per_block >= rows);
    }
  }
  static_assert(Launch::grid(1024, 1024, false) == 512 && Launch::threads(1024, false) == 128);
  static_assert(Launch::grid(8192, 8192, false) == 256 && Launch::threads(8192, false) == 512);
  static_assert(Launch::grid(i64{1} << 40, 8, false) * Launch::rows_per_block(i64{1} << 40, 8, false) >= i64{1} << 40);
}

BOOST_AUTO_TEST_CASE(tiles_cover_the_matrix) {
  for (const i64 rows : {1, 127, 128, 129, 100000}) {
    for (const i64 cols : {1, 128, 4097}) {
      const i64 tiles_down = (rows + 127) / 128;
      const i64 tiles_across = (cols + 127) / 128;
      BOOST_TEST(CastTilesLaunch::grid(rows, cols) == tiles_down * tiles_across);
      BOOST_TEST(CastTilesLaunch::grid(rows, cols, 1) == tiles_down * tiles_across);
      BOOST_TEST(CastTilesLaunch::grid(rows, cols, 2) == (tiles_down + 1) / 2 * tiles_across);
      BOOST_TEST(CastTilesLaunch::grid(rows, cols, 1, 6) == (rows + 63) / 64 * tiles_across);
    }
  }
  // Tiles of 64 rows if there are then no more of them than multiprocessors, and `least` of 128 rows.
  for (const auto& [rows, cols, expected] : {std::tuple{1024, 1024, 64},
                                             {333, 1111, 64},
                                             {66 * 64, 256, 64},
                                             {66 * 64 + 1, 256, 128},
                                             {2048, 1024, 128},
                                             {1, 16896, 64},
                                             {1, 16897, 128},
                                             {8192, 8192, 128}}) {
    BOOST_TEST(1 << CastTilesLaunch::rows_log2(rows, cols, 132, 0) == expected, rows << " x " << cols);
  }
  BOOST_TEST(CastTilesLaunch::rows_log2(1024, 1024, 132, 64) == 6U);
  BOOST_TEST(CastTilesLaunch::rows_log2(1024, 1024, 132, 65) == 7U);
  BOOST_TEST(CastTilesLaunch::rows_log2(0, 0, 132, 0) == 6U);
  // For 2^31 elements and more, one dimension of blocks is enough.
  BOOST_TEST(CastTilesLaunch::grid(i64{1} << 20, i64{1} << 16) <= kMaxGrid);
  BOOST_TEST(CastTilesLaunch::grid(i64{1} << 36, 1) <= kMaxGrid);
  BOOST_TEST(GemmSimtLaunch::grid(65, 64) == 2);
  BOOST_TEST(GemmSimtLaunch::grid(1, 1) == 1);
}

// The tiles cover the matrix, and none is empty.
BOOST_AUTO_TEST_CASE(elementwise_tiles_cover_the_matrix) {
  using Launch = ElementwiseLaunch;
  for (const u64 bytes : {2, 4}) {
    for (const i64 cols : kSizes) {
      const u32 log2 = Launch::across_log2(cols);
      const i64 across = ceil_div(cols, Launch::tile_cols(log2));
      BOOST_TEST(log2 <= Launch::kThreadsLog2);
      BOOST_TEST(across * Launch::tile_cols(log2) >= cols);
      BOOST_TEST((across - 1) * Launch::tile_cols(log2) < cols);
      BOOST_TEST(Launch::tile_rows(log2, bytes) * Launch::tile_cols(log2) ==
                 i64{Launch::kThreads} * Launch::rows(bytes) * kVec8);
      for (const i64 rows : kSizes) {
        const Launch::Grid grid = Launch::grid(rows, cols, bytes);
        BOOST_TEST(grid.x == across);
        BOOST_TEST(grid.y == std::min(kMaxGridDown, ceil_div(rows, Launch::tile_rows(log2, bytes))));
      }
    }
  }
  static_assert(Launch::across_log2(1) == 0 && Launch::across_log2(24) == 2 && Launch::across_log2(64) == 3);
  static_assert(Launch::across_log2(2080) == 4 && Launch::across_log2(4096) == 8 && Launch::across_log2(11008) == 7);
}

// Blocks take all rows, each in whole turns of its groups; what they keep of rows that fit is less than 96 KiB.
BOOST_AUTO_TEST_CASE(elementwise_maxima_fit_a_block) {
  using Launch = ElementwiseMaximaLaunch;
  for (const i64 cols : kSizes) {
    const i64 groups = Launch::groups(ElementwiseRowsLaunch::threads_log2(cols));
    for (const i64 rows : kSizes) {
      for (const i64 resident : {1, 132, 264}) {
        const i64 taken = Launch::rows_per_block(rows, cols, resident);
        const i64 grid = Launch::grid(rows, taken);
        BOOST_TEST((taken % groups == 0 && taken >= i64{Launch::kTurn}));
        BOOST_TEST((grid * taken >= rows && (grid - 1) * taken < rows && grid <= resident));
      }
    }
  }
  static_assert(Launch::shared_bytes(1, 2, 1) == 128 && Launch::shared_bytes(512, 2, 2) == 16384);
  static_assert(Launch::shared_bytes(2048, 4, 2) == 32768 && Launch::shared_bytes(4097, 2, 2) == 16416);
  static_assert(Launch::shared_bytes(24576, 2, 2) == Launch::kMostShared);
  static_assert(Launch::shared_bytes(24577, 2, 2) > Launch::kMostShared);
}

// Both forms of the transposed tile give every byte its own position inside the tile.
BOOST_AUTO_TEST_CASE(staged_tile_places) {
  std::set<u32> halves;
  for (u32 col = 0; col < 128; ++col) {
    for (u32 group = 0; group < 16; ++group) {
      const u32 place = StagedTile::half_slot(col, group);
      BOOST_TEST(place % 8 == 0U);
      BOOST_TEST(place + 8 <= StagedTile::kBytes);
      halves.insert(place);
    }
    for (u32 slot = 0; slot < 8; ++slot) {
      const u32 place = StagedTile::slot(col, slot);
      BOOST_TEST(place % 16 == 0U);
      // Rows 16 s .. + 7 come first, but the halves are swapped from column 64 on.
      BOOST_TEST(StagedTile::half_slot(col, 2 * slot) == place + (col < 64 ? 0U : 8U));
      BOOST_TEST(StagedTile::half_slot(col, 2 * slot + 1) == place + (col < 64 ? 8U : 0U));
    }
  }
  BOOST_TEST(halves.size() == 128U * 16U);
}

// Threads that access shared memory together, 16 with 8 bytes or 8 with 16, use each of the 32 banks once.
BOOST_AUTO_TEST_CASE(staged_tile_banks) {
  for (u32 group = 0; group < 16; ++group) {
    for (u32 j = 0; j < 8; ++j) {
      std::set<u32> banks;
      for (u32 lane = 0; lane < 16; ++lane) {
        const u32 place = StagedTile::half_slot(lane * 8 + j, group);
        banks.insert(place / 4 % 32);
        banks.insert((place / 4 + 1) % 32);
      }
      BOOST_TEST(banks.size() == 32U);
    }
  }
  for (u32 col = 0; col < 128; ++col) {
    std::set<u32> banks;
    for (u32 lane = 0; lane < 8; ++lane) {
      for (u32 word = 0; word < 4; ++word) banks.insert((StagedTile::slot(col, lane) / 4 + word) % 32);
    }
    BOOST_TEST(banks.size() == 32U);
  }
}

// The walk takes every tile exactly once, whatever the shape.
BOOST_AUTO_TEST_CASE(gemm_sm90_walks_through_all_tiles) {
  for (const u32 tiles_m : {1U, 2U, 7U, 8U, 9U, 16U, 23U}) {
    for (const u32 tiles_n : {1U, 2U, 5U, 64U}) {
      std::set<std::pair<u32, u32>> seen;
      for (u32 i = 0; i < tiles_m * tiles_n; ++i) {
        const Sm90TileIndex tile = sm90_tile_index(i, tiles_m, tiles_n);
        BOOST_TEST((tile.m < tiles_m && tile.n < tiles_n));
        seen.insert({tile.m, tile.n});
      }
      BOOST_TEST(seen.size() == tiles_m * tiles_n);
    }
  }
}

BOOST_AUTO_TEST_CASE(gemm_sm90_loads_all_rows_of_a_last_tile) {
  for (const u32 blocks : {1U, 2U, 4U}) {
    for (u32 rows = 1; rows < 256; ++rows) {
      const u32 box = sm90_tail_box(rows, blocks);
      BOOST_TEST(box * blocks >= rows);
      BOOST_TEST(box * blocks < rows + 8 * blocks);
      if (blocks > 1) BOOST_TEST(box % 8 == 0U);  // 1024 bytes, the swizzle's period
    }
  }
  static_assert(sm90_tail_box(44, 1) == 44);
}

BOOST_AUTO_TEST_CASE(gemm_sm90_launches_whole_clusters) {
  constexpr Sm90Tiling pair{.m = 128, .n = 256, .cluster_m = 2};
  static_assert(sm90_cluster_size(pair) == 2);
  BOOST_TEST(sm90_blocks(pair, 1, 1, 132) == 2U);
  BOOST_TEST(sm90_blocks(pair, 257, 1, 132) == 4U);
  BOOST_TEST(sm90_blocks(pair, 8192, 8192, 132) == 132U);
  BOOST_TEST(sm90_blocks(pair, 8192, 8192, 133) == 132U);
  BOOST_TEST(sm90_blocks(Sm90Tiling{}, 8192, 8192, 133) == 133U);
  BOOST_TEST(sm90_blocks(pair, 0x7fffff00, 0x7fffff00, 132) == 132U);  // no overflow
  static_assert(sm90_waves({.m = 256, .n = 128}) == 2 && sm90_waves({.m = 128, .n = 128, .pingpong = true}) == 2);
  // Three warpgroups that multiply share 192 rows, unless each has its own tiles.
  static_assert(sm90_consumers({.m = 192, .n = 128}) == 3 && sm90_threads({.m = 192, .n = 128}) == 512);
  static_assert(sm90_waves({.m = 192, .n = 128}) == 1 && sm90_waves({.m = 192, .n = 128, .pingpong = true}) == 3);
  static_assert(sm90_consumers({.m = 192, .n = 128, .pingpong = true}) == 2 && sm90_threads({.m = 128}) == 384);
  // 16 rows of a chunk fit into a warp's staging area.
  static_assert(sm90_chunk_columns({.n = 192}, 2) == 64 && sm90_chunk_columns({.n = 160}, 2) == 32);
  static_assert(sm90_chunk_columns({.n = 192}, 4) == 32);
  static_assert(sm90_chunk_columns({.m = 64, .n = 128}, 2) == 64 && sm90_chunk_columns({.n = 256}, 1) == 64);
  static_assert(sm90_staging_bytes({.n = 192}) == 16 * 64 * 2 && sm90_staging_bytes({.n = 160}) == 16 * 32 * 2);
  // Staging, column scale_inv and barriers follow the stages in shared memory, each aligned.
  constexpr Sm90Tiling tiling{};
  static_assert(sm90_staging_offset(tiling) == 4 * 128 * (128 + 256));
  static_assert(sm90_columns_offset(tiling) % 128 == 0 && sm90_barriers_offset({.tiling = tiling}) % 8 == 0);
  static_assert(sm90_shared_bytes({.tiling = tiling}) <= kSm90SharedLimit);
}

// Each column has its own place, a thread's columns are adjacent, and a warp's four kinds of threads read four of them
// from different banks.
BOOST_AUTO_TEST_CASE(gemm_sm90_places_factors_of_groups) {
  constexpr Granularity kGroups{.rows = 1, .cols = 128};
  constexpr Granularity kOfBlocks{.rows = 128, .cols = 128};
  constexpr Sm90Tiling tile{.m = 128, .n = 128, .stages = 6};
  static_assert(sm90_factor_bytes({.tiling = tile}) == 0);
  static_assert(sm90_factor_bytes({.tiling = tile, .scale_b = kOfBlocks}) == 4 * (128 + 4));
  static_assert(sm90_factor_bytes({.tiling = tile, .scale_b = kGroups}) == 4 * (128 + 128));
  // The copy engine writes a stage's at multiples of 16 bytes; with experts there is room for rows that begin at no
  // multiple of four.
  constexpr Sm90Tiling three{.m = 192, .n = 128, .stages = 4};
  constexpr Sm90Tiling wide{.m = 128, .n = 256, .stages = 4};
  for (const Sm90Tiling& t : {tile, three, wide}) {
    for (const Granularity scale_b : {kGroups, kOfBlocks}) {
      const GemmSm90Config config{.tiling = t, .scale_b = scale_b};
      BOOST_TEST(!sm90_shifts_factors(config));
      BOOST_TEST(sm90_factors_a(config) == t.m);
      GemmSm90Config experts = config;
      experts.experts = true;
      BOOST_TEST(sm90_shifts_factors(experts));
      BOOST_TEST(sm90_factors_a(experts) == t.m + 4);
      for (const GemmSm90Config& each : {config, experts}) {
        BOOST_TEST(sm90_factor_bytes(each) % 16 == 0U);
        BOOST_TEST(sm90_factors_offset(each) % 16 == 0U);
        BOOST_TEST(sm90_shared_bytes(each) <= kSm90SharedLimit);
      }
    }
  }
  constexpr GemmSm90Config along_k{.tiling = three, .scale_b = kGroups, .experts = true, .along_k = true};
  static_assert(!sm90_shifts_factors(along_k));
  static_assert(sm90_has_three(along_k) && sm90_has_three({.tiling = three, .scale_b = kOfBlocks, .experts = true}));
  static_assert(sm90_expert_box(three) % 8 == 0, "a box begins where the swizzle repeats");
  // Halves of 256 columns have a scale_inv of b's blocks each, and their parts are one after the other.
  static_assert(sm90_has_halves(wide) && sm90_part_columns(wide, true) == 128 && sm90_part_columns(wide, false) == 256);
  static_assert(sm90_sums(wide, sm90_part_columns(wide, true)) == 192 && sm90_sums(wide, 0) == 128);
  static_assert(sm90_share_columns(wide) == 128 && sm90_factor_shares(wide) == 2);
  static_assert(!sm90_has_halves({.m = 128, .n = 256, .pingpong = true}) && !sm90_has_halves({.m = 64, .n = 256}));
  static_assert(!sm90_factors_of_rows({.tiling = wide, .scale_b = kOfBlocks}));
  static_assert(sm90_factors_of_rows({.tiling = wide, .scale_b = kGroups}));
}

// Tiles hold whole groups and cover the matrix.
BOOST_AUTO_TEST_CASE(tiles_of_groups) {
  using Launch = QuantizeMxLaunch;
  for (const i64 cols : kSizes) {
    const u32 log2 = Launch::across_log2(cols);
    BOOST_TEST(log2 >= 2U);
    BOOST_TEST(log2 <= Vec8Tiles::kThreadsLog2);
    BOOST_TEST(Vec8Tiles::tile_cols(log2) % kMxGroup == 0);
    for (const u64 bytes : {2, 4}) {
      for (const i64 rows : kSizes) {
        const Vec8Tiles::Grid grid = Launch::grid(rows, cols, bytes);
        BOOST_TEST(grid.x == ceil_div(cols, Vec8Tiles::tile_cols(log2)));
        BOOST_TEST(grid.y == std::min(kMaxGridDown, ceil_div(rows, Vec8Tiles::tile_rows(log2, bytes))));
      }
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()
