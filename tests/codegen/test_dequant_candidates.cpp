// Tilings of the dequant-matmul kernels: each is buildable and prints; the choice is right where it is obvious; and
// batch_invariant.
#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "ingot/codegen/dequant/dequant_candidates.h"
#include "ingot/codegen/dequant/dequant_sm90.h"
#include "ingot/codegen/dequant/dequant_spec.h"
#include "ingot/codegen/kernel_spec.h"

BOOST_AUTO_TEST_SUITE(test_dequant_candidates)

using namespace ingot;

namespace {

const MatmulDevice kHopper{.target = target_for(9, 0), .multiprocessors = 132};
const MatmulDevice kAmpere{.target = target_for(8, 0), .multiprocessors = 108};

constexpr std::array<std::int64_t, 10> kTokens{1, 2, 8, 17, 32, 64, 100, 128, 256, 4096};
constexpr MatmulSize kLarge{.m = 16, .n = 28672, .k = 8192};

std::vector<DequantMatmulSpec> specs() {
  std::vector<DequantMatmulSpec> all;
  for (const Dtype weight : {Dtype::e4m3fn, Dtype::e2m3fn, Dtype::e2m1fn}) {
    for (const ScaleGranularity scale : {kTensorwise, kRowwise, kRowGroups, kRowGroups32, kBlocks}) {
      all.push_back({.weight = weight, .scale = scale});
    }
    all.push_back({.weight = weight, .scale = kRowGroups32, .scale_inv = Dtype::e8m0fnu});
  }
  const std::vector<DequantMatmulSpec> plain = all;
  for (DequantMatmulSpec spec : plain) {
    spec.experts = true;
    all.push_back(spec);
  }
  return all;
}

// An SM of sm_90 has 228 KiB of shared memory. Each block can request up to 227 KiB and takes 1 KiB more than it
// requests, so exactly the tiling's number of blocks must fit.
void check_room(const DequantMatmulSpec& spec, const DequantTiling& tiling) {
  for (u32 blocks = 1; blocks <= static_cast<u32>(tiling.blocks); ++blocks) {
    const u32 of_block = dequant_sm90_launch_bytes(spec, tiling, blocks) + 1024;
    BOOST_TEST(of_block >= dequant_sm90_shared_bytes(spec, tiling) + 1024);
    BOOST_TEST(of_block <= 228U * 1024);
    BOOST_TEST(228U * 1024 / of_block == blocks, print(DequantKernel::sm90, tiling));
  }
}

}  // namespace

BOOST_AUTO_TEST_CASE(every_tiling_can_be_made) {
  for (DequantMatmulSpec spec : specs()) {
    for (const DequantKernel kernel : {DequantKernel::sm90, DequantKernel::mma}) {
      spec.kernel = kernel;
      for (const std::int64_t m : kTokens) {
        for (const auto& [n, k] : {std::pair{28672, 8192}, {300, 70}, {64, 100000}}) {
          const auto all = dequant_tilings(spec, {m, n, k}, kHopper);
          BOOST_TEST(!all.empty());
          for (const DequantTiling& tiling : all) {
            BOOST_TEST(dequant_tiling_fault(spec, tiling) == "", print(kernel, tiling));
            BOOST_TEST((parse_dequant_tiling(kernel, print(kernel, tiling)) == tiling), print(kernel, tiling));
            BOOST_TEST(std::count(all.begin(), all.end(), tiling) == 1, print(kernel, tiling));
            BOOST_TEST(estimate_dequant(spec, {m, n, k}, tiling, kHopper) > 0);
            if (kernel == DequantKernel::sm90) check_room(spec, tiling);
          }
        }
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(the_order_of_kernels) {
  const auto kernels = [](const DequantMatmulSpec& spec, const MatmulDevice& place) {
    std::string text;
    for (const DequantMatmulSpec& each : dequant_order(spec, kLarge, place)) {
      BOOST_TEST(each.tiling.has_value());
      text += std::string(name(each.kernel)) + " ";
    }
    return text;
  };
  BOOST_TEST(kernels({}, kHopper) == "sm90 mma ");
  BOOST_TEST(kernels({.layout = WeightLayout::row_major}, kHopper) == "mma ");
  BOOST_TEST(kernels({}, kAmpere) == "mma ");
  BOOST_TEST(kernels({.kernel = DequantKernel::mma}, kHopper) == "mma ");
  BOOST_TEST(kernels({.kernel = DequantKernel::sm90}, kHopper) == "sm90 ");
  BOOST_TEST(kernels({.kernel = DequantKernel::sm90}, kAmpere) == "sm90 ");  // the kernel then refuses the call
  BOOST_TEST(kernels({}, {.target = target_for(7, 5), .multiprocessors = 68}) == "");
  const DequantTiling own{.split = 2};
  const auto named = dequant_order({.kernel = DequantKernel::sm90, .tiling = own}, kLarge, kHopper);
  BOOST_REQUIRE(named.size() == 1U);
  BOOST_TEST((named[0].tiling == own));
}

BOOST_AUTO_TEST_CASE(candidates_begin_with_the_choice) {
  for (const DequantMatmulSpec& spec : specs()) {
    for (const std::int64_t m : kTokens) {
      const MatmulSize size{m, 4096, 14336};
      const auto order = dequant_order(spec, size, kHopper);
      const auto all = dequant_candidates(spec, size, kHopper);
      BOOST_REQUIRE(!order.empty());
      BOOST_REQUIRE(all.size() >= order.size());
      BOOST_TEST((all.front() == order.front()));
      BOOST_TEST(all.size() <= 48U);
      for (const DequantMatmulSpec& each : all) validate(each);
    }
  }
}

// With few tokens and few rows of weight, K is split; with many tokens, tiles are large.
BOOST_AUTO_TEST_CASE(plain_choices) {
  const auto chosen = [](const MatmulSize& size, const MatmulDevice& place) {
    return *dequant_order({}, size, place).front().tiling;
  };
  BOOST_TEST(chosen({1, 4096, 14336}, kHopper).split > 1);
  BOOST_TEST(chosen({1, 4096, 14336}, kHopper).tokens == 8);
  BOOST_TEST(chosen({4096, 28672, 8192}, kHopper).tokens >= 128);
  BOOST_TEST(chosen({4096, 28672, 8192}, kHopper).split == 1);
  // 224 tiles of 256 rows on 132 SMs.
  BOOST_TEST(chosen({1, 57344, 8192}, kHopper).stream_k);
  BOOST_TEST(chosen({1, 1024, 14336}, kAmpere).split > 1);
  BOOST_TEST(chosen({4096, 4096, 4096}, kAmpere).tokens == 64);
}

// Whole tiles of 128 rows, or two parts of each: on each GPU where they fill its multiprocessors once.
BOOST_AUTO_TEST_CASE(stream_k_where_tiles_do_not_fill_one_round) {
  const auto offered = [](std::int64_t n, int multiprocessors) {
    MatmulDevice device = kHopper;
    device.multiprocessors = multiprocessors;
    const auto all = dequant_tilings({.kernel = DequantKernel::sm90}, {.m = 128, .n = n, .k = 8192}, device);
    return std::ranges::any_of(all, &DequantTiling::stream_k);
  };
  BOOST_TEST(!offered(8192, 132));  // 128 blocks
  BOOST_TEST(offered(7168, 132));   // 112
  BOOST_TEST(offered(8192, 114));
  BOOST_TEST(!offered(7168, 114));
  BOOST_TEST(!offered(7168, 116));
  BOOST_TEST(offered(7168, 117));  // a larger share than 5 of 132 would be idle
  BOOST_TEST(offered(7168, 0));
}

// Each of these is within 3 % of the fastest that one H200 timed on 2026-12-01, but for those with a remark
// (docs/notes/dequant_matmul.md).
BOOST_AUTO_TEST_CASE(choices_for_fp8) {
  const auto chosen = [](const MatmulSize& size, const DequantMatmulSpec& spec = {}) {
    return print(DequantKernel::sm90, *dequant_order(spec, size, kHopper).front().tiling);
  };
  for (const std::int64_t m : {1, 8}) {
    BOOST_TEST(chosen({m, 10240, 8192}) == "mma:8x192x128:8:2:1");
    BOOST_TEST(chosen({m, 17920, 5120}) == "mma:8x128x128:5:1:1:streamk");
    BOOST_TEST(chosen({m, 28672, 4096}) == "mma:8x128x128:5:1:1:streamk");
    BOOST_TEST(chosen({m, 8192, 8192}) == "mma:8x128x128:5:2:2");
  }
  BOOST_TEST(chosen({16, 5120, 17920}) == "mma:16x192x128:4:4:1");
  BOOST_TEST(chosen({16, 6144, 4096}) == "wgmma:16x128x128:7:2:1");
  BOOST_TEST(chosen({16, 8192, 8192}) == "wgmma:16x128x128:7:2:1");
  BOOST_TEST(chosen({16, 10240, 8192}) == "wgmma:16x192x128:7:2:1");
  BOOST_TEST(chosen({16, 17920, 5120}) == "mma:16x128x128:5:1:1:streamk");
  BOOST_TEST(chosen({16, 28672, 4096}) == "wgmma:16x256x128:6:1:1:waves2");
  BOOST_TEST(chosen({128, 4096, 14336}) == "wgmma:64x128x256:3:2:1");
  BOOST_TEST(chosen({128, 6144, 4096}) == "wgmma:64x192x128:4:2:1");
  BOOST_TEST(chosen({128, 8192, 8192}) == "wgmma:128x128x128:3:2:1");
  BOOST_TEST(chosen({128, 10240, 8192}) == "wgmma:128x128x128:4:1:1:streamk");
  BOOST_TEST(chosen({128, 17920, 5120}) == "wgmma:128x192x128:3:1:1:streamk");
  BOOST_TEST(chosen({128, 28672, 8192}) == "wgmma:128x192x128:3:1:1:streamk");
  BOOST_TEST(chosen({256, 2560, 6912}) == "wgmma:128x192x64:4:4:1");
  BOOST_TEST(chosen({256, 5120, 17920}) == "wgmma:128x128x128:4:1:1:streamk");
  BOOST_TEST(chosen({256, 6912, 2560}) == "wgmma:128x128x128:4:1:1");
  BOOST_TEST(chosen({256, 8192, 8192}) == "wgmma:128x128x128:4:1:1");  // by 128 tiles: stream-K has nothing to gain
  BOOST_TEST(chosen({256, 17920, 5120}) == "wgmma:256x128x64:5:1:1:streamk");
  BOOST_TEST(chosen({1024, 5120, 17920}) == "wgmma:256x128x64:5:1:1:streamk");
  BOOST_TEST(chosen({1024, 10240, 8192}) == "wgmma:256x128x64:5:1:1:streamk");
  BOOST_TEST(chosen({1024, 6912, 2560}) == "wgmma:256x128x64:5:1:1:streamk");  // 7 % slower than the fastest
  BOOST_TEST(chosen({4096, 28672, 8192}) == "wgmma:256x128x64:5:1:1:multicast2");
  // Four bits, scale_inv of groups and batch_invariant were not timed anew: they keep their tilings.
  BOOST_TEST(chosen({1, 10240, 8192}, {.weight = Dtype::e2m1fn}) == "mma:8x192x256:3:2:1");
  BOOST_TEST(chosen({256, 8192, 8192}, {.weight = Dtype::e2m1fn}) == "wgmma:128x128x128:5:1:1");
  BOOST_TEST(chosen({1, 10240, 8192}, {.scale = kRowGroups}) == "mma:8x192x256:3:2:1");
  BOOST_TEST(chosen({256, 8192, 8192}, {.batch_invariant = true}) == "wgmma:128x128x128:3:2:1");
}

// Everything that determines the order of sums is the same for every M.
BOOST_AUTO_TEST_CASE(batch_invariant) {
  for (const MatmulDevice& place : {kHopper, kAmpere}) {
    for (DequantMatmulSpec spec : specs()) {
      if (spec.experts) continue;  // which are refused
      spec.batch_invariant = true;
      for (const auto& [n, k] : {std::pair{28672, 8192}, {4096, 4096}, {333, 4100}, {128, 100}}) {
        const auto first = dequant_order(spec, {1, n, k}, place);
        for (const std::int64_t m : kTokens) {
          const auto order = dequant_order(spec, {m, n, k}, place);
          BOOST_REQUIRE(order.size() == first.size());
          for (std::size_t i = 0; i < order.size(); ++i) {
            const DequantTiling& a = *first[i].tiling;
            const DequantTiling& b = *order[i].tiling;
            BOOST_TEST((order[i].kernel == first[i].kernel));
            BOOST_TEST((a.wgmma == b.wgmma && a.rows == b.rows && a.depth == b.depth && a.split == b.split &&
                        a.k_warps == b.k_warps && a.waves == b.waves && !a.stream_k && !b.stream_k),
                       print(order[i].kernel, a) << " and " << print(order[i].kernel, b) << " for " << m);
          }
        }
      }
    }
  }
}

// Sums and roundings in 64 bits would turn negative there, and the estimate small.
BOOST_AUTO_TEST_CASE(sizes_near_two_to_the_63_are_the_slowest) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  constexpr std::int64_t kHuge = std::int64_t{1} << 60;
  for (DequantMatmulSpec spec : specs()) {
    for (const DequantKernel kernel : {DequantKernel::sm90, DequantKernel::mma}) {
      spec.kernel = kernel;
      const std::vector<DequantTiling> all = dequant_tilings(spec, {kMost, kMost, kMost}, kHopper);
      BOOST_REQUIRE(!all.empty());
      BOOST_TEST((all == dequant_tilings(spec, {kHuge, kHuge, kHuge}, kHopper)));
      for (const DequantTiling& tiling : all) {
        const auto us = [&](MatmulSize size) { return estimate_dequant(spec, size, tiling, kHopper); };
        BOOST_TEST(us({kMost, kMost, kMost}) > us({kHuge, kHuge, kHuge}), print(kernel, tiling));
        BOOST_TEST(us({kMost, 64, 64}) > us({kHuge, 64, 64}), print(kernel, tiling));
      }
    }
  }
}

// Of a matmul with as many rows of each expert: a tile for most experts' rows, and the columns of all that may have
// rows.
BOOST_AUTO_TEST_CASE(sizes_of_experts) {
  const auto size = [](std::int64_t m, std::int64_t experts, std::optional<std::int64_t> capacity = {}) {
    return size_of_experts({.m = m, .n = 100, .k = 64}, experts, capacity);
  };
  BOOST_TEST((size(4, 128) == MatmulSize{.m = 2, .n = 400, .k = 64}));      // four experts at most have rows
  BOOST_TEST((size(512, 128) == MatmulSize{.m = 6, .n = 12800, .k = 64}));  // 4 on average
  BOOST_TEST((size(8192, 128) == MatmulSize{.m = 64, .n = 12800, .k = 64}));
  BOOST_TEST((size(128000, 128) == MatmulSize{.m = 1000, .n = 12800, .k = 64}));
  BOOST_TEST((size(1, 1) == MatmulSize{.m = 2, .n = 100, .k = 64}));
  BOOST_TEST((size(8 * 16, 8, 16) == MatmulSize{.m = 16, .n = 800, .k = 64}));
  BOOST_TEST((size(8 * 512, 8, 512) == MatmulSize{.m = 64, .n = 800, .k = 64}));
}

const DequantMatmulSpec kFp8Experts{.weight = Dtype::e4m3fn, .experts = true};
const DequantMatmulSpec kMxExperts{
    .weight = Dtype::e2m1fn, .scale = kRowGroups32, .scale_inv = Dtype::e8m0fnu, .experts = true};

// The kernel of `experts` experts that have so many rows on average, or at most.
std::string chosen(const DequantMatmulSpec& spec, std::int64_t rows, std::int64_t experts, std::int64_t n,
                   std::int64_t k, std::optional<std::int64_t> capacity = std::nullopt) {
  const MatmulSize size = size_of_experts({.m = rows * experts, .n = n, .k = k}, experts, capacity);
  const DequantMatmulSpec first = dequant_order(spec, size, kHopper).front();
  return print(first.kernel, *first.tiling);
}

// Those of experts with few rows were timed (bench/results/weight_only_experts_variants_h200.json). Each of these is
// within 3 % of the fastest that is offered.
BOOST_AUTO_TEST_CASE(choices_for_experts_with_few_rows) {
  const DequantMatmulSpec &fp8 = kFp8Experts, &mx = kMxExperts;
  BOOST_TEST(chosen(mx, 1, 32, 2048, 7168) == "mma:8x256x512:2:1:1");
  BOOST_TEST(chosen(mx, 1, 128, 1536, 2048) == "mma:8x256x512:2:1:1");
  BOOST_TEST(chosen(mx, 1, 128, 5760, 2880) == "mma:8x128x512:2:1:1:blocks2");  // rows of scale_inv have 90 bytes
  BOOST_TEST(chosen(mx, 16, 32, 2048, 7168, 16) == "mma:16x256x512:2:1:1");     // nobody has more rows
  BOOST_TEST(chosen(mx, 64, 32, 2048, 7168) == "wgmma:64x256x256:3:1:1");
  BOOST_TEST(chosen(mx, 64, 128, 5760, 2880) == "wgmma:64x128x128:4:1:1:waves2:blocks2");
  BOOST_TEST(chosen(fp8, 1, 32, 2048, 7168) == "mma:8x128x256:5:1:1");
  BOOST_TEST(chosen(fp8, 16, 32, 2048, 7168) == "wgmma:24x128x128:4:1:1:waves2:blocks2");
  BOOST_TEST(chosen(fp8, 64, 32, 2048, 7168) == "wgmma:64x256x128:4:1:1");
}

// The host does not know how experts are routed, so a choice has to be good for equal or random rows and by Zipf's law.
// Timed in bench/results/weight_only_experts_narrow_h200.json. With 4 rows the first six are within 1.2 % of the
// fastest for equal rows, and within 2 % by Zipf's law.
BOOST_AUTO_TEST_CASE(choices_for_experts_of_which_one_is_busy) {
  const DequantMatmulSpec &fp8 = kFp8Experts, &mx = kMxExperts;
  BOOST_TEST(chosen(mx, 4, 8, 4096, 14336) == "mma:16x256x512:2:1:1");
  BOOST_TEST(chosen(mx, 4, 32, 2048, 7168) == "mma:16x256x512:2:1:1");
  BOOST_TEST(chosen(mx, 4, 128, 1536, 2048) == "mma:16x256x512:2:1:1");
  BOOST_TEST(chosen(mx, 4, 128, 2880, 2880) == "mma:16x128x256:3:1:1:blocks2");
  BOOST_TEST(chosen(fp8, 4, 8, 4096, 14336) == "mma:16x128x256:5:1:1");
  BOOST_TEST(chosen(fp8, 4, 128, 1536, 2048) == "mma:16x128x256:5:1:1");
  // 24 tokens are the fastest for random rows, but in two rounds or fewer a busy expert's second tile is one more, so
  // that by Zipf's law they take 30 % longer than the fastest. 32 tokens by clusters are within 5 % of it in both.
  BOOST_TEST(chosen(mx, 16, 32, 2048, 7168) == "wgmma:32x128x256:5:2:1");
  // By estimates alone, or timed for random rows alone.
  BOOST_TEST(chosen(fp8, 4, 128, 2048, 768) == "mma:16x128x128:4:1:1:blocks2");  // three stages of 256
  BOOST_TEST(chosen(mx, 16, 8, 4096, 14336) == "wgmma:32x128x256:5:2:1");
  BOOST_TEST(chosen(mx, 16, 128, 1536, 2048) == "wgmma:24x128x128:7:1:1:waves2:blocks2");
  BOOST_TEST(chosen(mx, 16, 128, 2880, 2880) == "wgmma:24x128x128:7:1:1:waves2:blocks2");
}

// Busy experts change nothing where nobody needs a second tile: tiles of 8 tokens with means below 4, others from there
// on. A tile of 16 multiplies as few as one of 8 where no more have rows.
BOOST_AUTO_TEST_CASE(tiles_of_16_tokens_only_where_experts_may_fill_them) {
  for (const DequantMatmulSpec& spec : {kFp8Experts, kMxExperts}) {
    for (const std::int64_t rows : {1, 2, 3, 4, 5, 6}) {
      const MatmulSize size = size_of_experts({.m = rows * 32, .n = 2048, .k = 7168}, 32, std::nullopt);
      for (const DequantTiling& t : dequant_tilings(spec, size, kHopper)) {
        if (!t.wgmma) BOOST_TEST(t.tokens == (rows < 4 ? 8 : 16), print(DequantKernel::sm90, t));
      }
    }
  }
}

// Four of many experts have one row each: whole tiles would leave multiprocessors idle. The fastest that were timed
// (bench/results/weight_only_experts_h200.json and its former versions).
BOOST_AUTO_TEST_CASE(choices_for_few_experts) {
  const DequantMatmulSpec mx{
      .weight = Dtype::e2m1fn, .scale = kRowGroups32, .scale_inv = Dtype::e8m0fnu, .experts = true};
  const auto chosen = [&](std::int64_t experts, std::int64_t n, std::int64_t k) {
    const MatmulSize size = size_of_experts({.m = 4, .n = n, .k = k}, experts, std::nullopt);
    return print(DequantKernel::sm90, *dequant_order(mx, size, kHopper).front().tiling);
  };
  BOOST_TEST(chosen(128, 5760, 2880) == "mma:8x192x256:3:2:1");
  BOOST_TEST(chosen(128, 2880, 2880) == "mma:8x192x256:3:2:1");
  BOOST_TEST(chosen(128, 1536, 2048) == "mma:8x128x128:9:4:1:blocks2");
  BOOST_TEST(chosen(32, 2048, 7168) == "mma:8x64x512:4:2:2");
  BOOST_TEST(chosen(8, 4096, 14336) == "mma:8x192x256:3:4:1");
}

BOOST_AUTO_TEST_CASE(only_experts_with_few_rows_have_tiles_of_24_tokens) {
  for (DequantMatmulSpec spec : specs()) {
    spec.kernel = DequantKernel::sm90;
    for (const std::int64_t m : {16, 20, 24, 25, 64}) {
      const auto all = dequant_tilings(spec, {m, 40 * 2880, 2880}, kHopper);
      const bool any = std::ranges::any_of(all, [](const DequantTiling& each) { return each.tokens == 24; });
      const bool has_sums_of_groups = spec.scale.cols != 0 && spec.scale_inv != Dtype::e8m0fnu;
      const bool is_timed =
          bits_of(spec.weight) == 4 ? !has_sums_of_groups : bits_of(spec.weight) == 8 && spec.scale.cols == 0;
      BOOST_TEST(any == (spec.experts && m <= 24 && is_timed), print(KernelSpec(spec)) << " for " << m);
    }
  }
}

// By mma.sync, experts' tiles load and multiply the eights of tokens that have rows, and no others; where x is loaded
// for several blocks, and by wgmma, all.
BOOST_AUTO_TEST_CASE(tiles_fit_the_tokens_of_their_experts) {
  for (const u32 tokens : {8U, 16U, 32U}) {
    for (u32 rows = 1; rows <= 40; ++rows) {
      const DequantSm90Tiling t{.tokens = tokens, .experts = true};
      const u32 loaded = dequant_x_box(t, 1000) * dequant_token_tiles(t, rows);
      BOOST_TEST(loaded >= std::min(rows, tokens));
      BOOST_TEST(loaded < std::min(rows, tokens) + 8);
      BOOST_TEST(dequant_token_tiles({.tokens = tokens}, rows) == tokens / 8);
    }
  }
  DequantSm90Tiling t{.tokens = 32, .wgmma = true, .experts = true};
  BOOST_TEST((dequant_token_tiles(t, 1) == 4U && dequant_x_box(t, 1000) == 32U));
  t.wgmma = false;
  t.multicast = 2;
  BOOST_TEST((dequant_token_tiles(t, 1) == 4U && dequant_x_box(t, 1000) == 16U));
}

BOOST_AUTO_TEST_CASE(experts_have_neither_stream_k_nor_a_split_of_mma) {
  for (DequantMatmulSpec spec : specs()) {
    if (!spec.experts) continue;
    for (const std::int64_t m : kTokens) {
      for (const MatmulDevice& device : {kHopper, kAmpere}) {
        for (const DequantMatmulSpec& each : dequant_candidates(spec, {m, 40 * 2880, 2880}, device)) {
          BOOST_TEST(!each.tiling->stream_k);
          BOOST_TEST((each.kernel == DequantKernel::sm90 || each.tiling->split == 1));
          BOOST_TEST_CONTEXT(print(KernelSpec(each))) validate(each);
        }
      }
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()
