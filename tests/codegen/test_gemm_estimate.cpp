// The tilings of gemm_sm90 and gemm_mma: each is buildable, and the cost model picks the best one where it is obvious.
#include "ingot/codegen/gemm/gemm_estimate.h"

#include <algorithm>
#include <array>
#include <boost/test/unit_test.hpp>
#include <cstdint>
#include <limits>
#include <string>

#include "ingot/codegen/kernel_spec.h"
#include "ingot/codegen/matmul.h"

BOOST_AUTO_TEST_SUITE(test_gemm_estimate)

using namespace ingot;

namespace {

constexpr int kH200 = 132;

GemmSpec spec_of(bool fast) { return {.fast_accumulation = fast}; }

}  // namespace

BOOST_AUTO_TEST_CASE(every_candidate_can_be_made) {
  for (const bool fast : {false, true}) {
    GemmSpec spec = spec_of(fast);
    const auto all = gemm_tilings(spec);
    spec.kernel = GemmKernel::sm90;
    BOOST_TEST(all.size() >= 5U);
    for (const GemmTiling& tiling : all) {
      spec.tiling = tiling;
      BOOST_CHECK_NO_THROW(validate(spec));
      BOOST_TEST((parse_gemm_tiling(print(tiling)) == tiling), print(tiling));
      BOOST_TEST(std::count(all.begin(), all.end(), tiling) == 1, print(tiling));
    }
  }
}

BOOST_AUTO_TEST_CASE(the_tile_of_gemm_mma) {
  const auto chosen = [](MatmulSize size) { return print_mma_tiling(choose_mma_tiling({}, size, kH200)); };
  BOOST_TEST(chosen({1, 1, 4096}) == "64x64");
  BOOST_TEST(chosen({1024, 1024, 1024}) == "64x64");
  BOOST_TEST(chosen({2048, 2048, 64}) == "128x128");
  BOOST_TEST(chosen({1, 65536, 1}) == "128x128");
  const GemmSpec own{.kernel = GemmKernel::mma, .tiling = kMmaTilings[1]};
  BOOST_TEST((choose_mma_tiling(own, {8192, 8192, 8192}, kH200) == kMmaTilings[1]));
  for (const GemmTiling& tiling : kMmaTilings) {
    BOOST_TEST((parse_mma_tiling(print_mma_tiling(tiling)) == tiling));
  }
}

BOOST_AUTO_TEST_CASE(where_gemm_sm90_is_preferred) {
  const auto preferred = [](const char* line) {
    const GemmCall call = parse_gemm_call(std::string("gemm e4m3fn*e4m3fn->") + line);
    return prefers_sm90(call.spec, call.size, kH200);
  };
  BOOST_TEST(preferred("bf16 fast 8192 8192 8192"));
  BOOST_TEST(preferred("f32 fast 8192 8192 8192"));
  BOOST_TEST(preferred("bf16 8192 8192 8192"));
  BOOST_TEST(preferred("bf16 scale=row,row 8192 8192 8192"));
  BOOST_TEST(preferred("bf16 scale=row,row fast 64 8192 8192"));
  BOOST_TEST(preferred("bf16 fast 64 8192 8192"));
  BOOST_TEST(!preferred("bf16 fast c=bf16 8192 8192 8192"));
  BOOST_TEST(!preferred("bf16 4096 4096 4096"));
  BOOST_TEST(!preferred("bf16 fast 16 11008 4096"));
  BOOST_TEST(!preferred("bf16 fast 128 28672 8192"));
  BOOST_TEST(!preferred("bf16 fast 28672 128 8192"));
}

// The gradients' GEMMs, except for those that add to a matrix and for sizes that were not measured.
BOOST_AUTO_TEST_CASE(where_gemm_sm90_is_preferred_for_16_bits) {
  const auto preferred = [](const char* line) {
    const GemmCall call = parse_gemm_call(line);
    return prefers_sm90(call.spec, call.size, kH200);
  };
  BOOST_TEST(preferred("gemm bf16*bf16->bf16 nn 8192 8192 8192"));
  BOOST_TEST(preferred("gemm f16*f16->f32 tn 4096 4096 4096"));
  BOOST_TEST(preferred("gemm bf16*bf16->bf16 tn 4096 14336 3000"));
  BOOST_TEST(!preferred("gemm bf16*bf16->bf16 nt 8192 8192 8192"));
  BOOST_TEST(!preferred("gemm bf16*bf16->f32 tn c=f32 8192 8192 8192"));
  BOOST_TEST(!preferred("gemm bf16*bf16->bf16 nn 64 8192 8192"));
  BOOST_TEST(!preferred("gemm bf16*bf16->bf16 tn 2048 2048 2048"));
  BOOST_TEST(!preferred("gemm bf16*bf16->bf16 tn 128256 8192 64"));
  BOOST_TEST(!preferred("gemm bf16*bf16->bf16 tn 16384 16384 16384"));
  BOOST_TEST(!preferred("gemm bf16*bf16->bf16 nn 2731 4096 28672"));
}

// Where cuBLASLt has to copy no scale_inv, the one that was faster (gemm_blocks_variants_h200.json); beyond that,
// cuBLASLt.
BOOST_AUTO_TEST_CASE(where_gemm_sm90_is_preferred_for_blocks) {
  const auto preferred = [](const char* line, bool scale_inv_as_read) {
    const GemmCall call = parse_gemm_call(line);
    return prefers_sm90(call.spec, call.size, kH200, scale_inv_as_read);
  };
  const char* const blocks = "gemm e4m3fn*e4m3fn->bf16 scale=1x128,128x128 4096 4096 4096";
  BOOST_TEST(preferred(blocks, false));
  BOOST_TEST(preferred(blocks, true));
  const char* const large = "gemm e4m3fn*e4m3fn->bf16 scale=1x128,128x128 8192 8192 8192";
  BOOST_TEST(preferred(large, false));
  BOOST_TEST(preferred(large, true));
  BOOST_TEST(preferred("gemm e4m3fn*e4m3fn->bf16 scale=1x128,128x128 16384 7168 8192", true));
  BOOST_TEST(!preferred("gemm e4m3fn*e4m3fn->bf16 scale=1x128,128x128 16384 16384 16384", true));
  const char* const small = "gemm e4m3fn*e4m3fn->bf16 scale=1x128,128x128 1024 1024 1024";
  BOOST_TEST(preferred(small, false));
  const char* const groups = "gemm e4m3fn*e4m3fn->bf16 scale=1x128,1x128 2048 2048 2048";
  BOOST_TEST(preferred(groups, false));
  BOOST_TEST(!preferred(groups, true));
  const auto of_groups = [&](std::int64_t m, std::int64_t n, std::int64_t k) {
    const std::string line = "gemm e4m3fn*e4m3fn->bf16 scale=1x128,1x128 ";
    return preferred((line + std::to_string(m) + " " + std::to_string(n) + " " + std::to_string(k)).c_str(), true);
  };
  BOOST_TEST(!of_groups(4096, 4096, 4096));
  BOOST_TEST(!of_groups(4096, 4096, 7168));
  BOOST_TEST(!of_groups(2500, 4096, 11008));
  BOOST_TEST(of_groups(5000, 5120, 3072));
  BOOST_TEST(of_groups(8192, 8192, 8192));
  BOOST_TEST(of_groups(6144, 3584, 18944));
  BOOST_TEST(of_groups(8192, 14336, 4096));
  BOOST_TEST(of_groups(16384, 7168, 8192));
  BOOST_TEST(!of_groups(16384, 16384, 16384));
}

// Tiles of 192 x 128 and, with blocks, 128 x 256, where they fill their rounds: at the sizes of
// gemm_blocks_variants_h200.json and gemm_blocks_tiles_h200.json the choice is the fastest tiling, or within 1 % of it.
// Epilogues that need registers do not have 192 x 128.
BOOST_AUTO_TEST_CASE(tiles_of_three_warpgroups_and_of_256_columns) {
  const auto tiling = [](const char* scale_and_epilogue, MatmulSize size) {
    const auto spec =
        std::get<GemmSpec>(parse(std::string("gemm e4m3fn*e4m3fn->bf16 scale=1x128,") + scale_and_epilogue));
    return choose_sm90_tiling(spec, size, kH200);
  };
  const auto rows = [&](const char* scale_and_epilogue, MatmulSize size) { return tiling(scale_and_epilogue, size).m; };
  const auto columns = [&](MatmulSize size) { return tiling("128x128", size).n; };
  constexpr std::array<MatmulSize, 5> kOfAll{
      {{8192, 8192, 8192}, {16384, 7168, 8192}, {6144, 3584, 18944}, {8192, 14336, 4096}, {5000, 5120, 3072}}};
  for (const MatmulSize size : kOfAll) {
    BOOST_TEST(rows("128x128", size) == 192, size.m);
    BOOST_TEST(rows("1x128", size) == 192, size.m);
  }
  for (const MatmulSize size : {MatmulSize{2048, 2048, 2048}, {4096, 4096, 4096}, {4096, 4096, 7168}}) {
    BOOST_TEST(columns(size) == 256, size.k);
  }
  BOOST_TEST(columns({2500, 4096, 11008}) == 128);
  for (const std::int64_t k : {4096, 7168}) {
    BOOST_TEST(rows("128x128", {4096, 4096, k}) == 128);
    BOOST_TEST(rows("1x128", {4096, 4096, k}) == 192);
  }
  for (const MatmulSize size : {MatmulSize{2048, 2048, 2048}, {2500, 4096, 11008}, {1777, 6912, 2560}}) {
    BOOST_TEST(rows("128x128", size) == 128, size.m);
    BOOST_TEST(rows("1x128", size) == 128, size.m);
  }
  // An epilogue that needs registers has neither.
  for (const MatmulSize size : {MatmulSize{2048, 2048, 2048}, {4096, 4096, 4096}, {8192, 8192, 8192}}) {
    const GemmTiling of_epilogue = tiling("128x128 epilogue=x*w[col] also=amax", size);
    BOOST_TEST(of_epilogue.m != 192, size.m);
    BOOST_TEST(!(of_epilogue.m == 128 && of_epilogue.n == 256), size.m);
  }
}

// An epilogue that needs registers excludes the tilings that leave few.
BOOST_AUTO_TEST_CASE(tilings_of_an_epilogue) {
  const auto most = [](const char* line) {
    int sums = 0;
    for (const GemmTiling& t : gemm_tilings(std::get<GemmSpec>(parse(std::string("gemm e4m3fn*e4m3fn->") + line)))) {
      sums = std::max(sums, t.m * t.n / (t.pingpong ? 128 : 256));
    }
    return sums;
  };
  BOOST_TEST(most("bf16 fast") == 192);
  const auto fast = [](const char* line) { return gemm_tilings(std::get<GemmSpec>(parse(line))).size(); };
  BOOST_TEST(fast("gemm e4m3fn*e4m3fn->bf16 fast") == 16U);
  BOOST_TEST(fast("gemm e4m3fn*e4m3fn->bf16 fast epilogue=silu(x)") == 16U);
  // Tiles of 160 columns have 16-bit outputs, and b in rows along k.
  BOOST_TEST(fast("gemm e4m3fn*e4m3fn->f32 fast") == 13U);
  BOOST_TEST(fast("gemm bf16*bf16->bf16 nt") == 16U);
  BOOST_TEST(fast("gemm bf16*bf16->bf16 nn") == 13U);
  const auto accurate = [](const char* line) {
    return gemm_tilings(std::get<GemmSpec>(parse(std::string("gemm e4m3fn*e4m3fn->") + line))).size();
  };
  BOOST_TEST(accurate("bf16") == 14U);
  BOOST_TEST(accurate("bf16 also=amax") == 14U);
  BOOST_TEST(accurate("bf16 epilogue=x*w[col] also=amax") == 11U);
  BOOST_TEST(most("bf16 fast epilogue=silu(x)") == 192);
  BOOST_TEST(most("bf16 fast epilogue=x+residual") == 192);
  BOOST_TEST(most("f32 fast c=f32") == 128);
  BOOST_TEST(most("bf16 fast epilogue=x+residual also=amax") == 128);
  BOOST_TEST(most("e4m3fn fast") == 128);
}

BOOST_AUTO_TEST_CASE(a_specs_own_tiling_is_the_only_candidate) {
  GemmSpec spec = spec_of(true);
  spec.kernel = GemmKernel::sm90;
  spec.tiling = GemmTiling{64, 192, 1, 1, 6, true};
  BOOST_TEST(gemm_tilings(spec).size() == 1U);
  BOOST_TEST((choose_sm90_tiling(spec, {8192, 8192, 8192}, kH200) == *spec.tiling));
}

BOOST_AUTO_TEST_CASE(the_choice_is_the_least_estimate) {
  for (const bool fast : {false, true}) {
    for (const MatmulSize size :
         {MatmulSize{1, 1, 16}, MatmulSize{64, 11008, 4096}, MatmulSize{1024, 1024, 1024}, MatmulSize{4096, 4096, 4096},
          MatmulSize{16384, 8192, 1280}, MatmulSize{1 << 20, 100, 16}}) {
      const GemmTiling chosen = choose_sm90_tiling(spec_of(fast), size, kH200);
      const double least = estimate_gemm(spec_of(fast), size, chosen, kH200);
      BOOST_TEST(least > 0);
      for (const GemmTiling& tiling : gemm_tilings(spec_of(fast))) {
        BOOST_TEST(estimate_gemm(spec_of(fast), size, tiling, kH200) >= least, print(tiling));
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(more_work_takes_longer) {
  for (const GemmTiling& tiling : gemm_tilings(spec_of(true))) {
    const auto time = [&](MatmulSize size) { return estimate_gemm(spec_of(true), size, tiling, kH200); };
    BOOST_TEST(time({8192, 8192, 8192}) > time({4096, 8192, 8192}));
    BOOST_TEST(time({8192, 8192, 8192}) > time({8192, 4096, 8192}));
    BOOST_TEST(time({8192, 8192, 8192}) > time({8192, 8192, 4096}));
  }
}

// Tiles are cut along K where memory bandwidth limits the time and whole tiles leave some of it unused. They are not
// cut for large GEMMs, for few K-steps, and where blocks at different positions along K would have to read operands
// again.
BOOST_AUTO_TEST_CASE(stream_k_is_for_few_rows) {
  for (const bool fast : {false, true}) {
    const auto cut = [&](MatmulSize size) { return choose_sm90_tiling(spec_of(fast), size, kH200).stream_k; };
    BOOST_TEST(cut({16, 10240, 7168}));  // 80 or 160 tiles of 64 rows
    BOOST_TEST(!cut({640, 4096, 14336}));
    BOOST_TEST(!cut({2500, 2048, 16384}));
    BOOST_TEST(!cut({256, 256, 256}));
    BOOST_TEST(!cut({1024, 1024, 1024}));
    BOOST_TEST(!cut({4096, 4096, 4096}));
    BOOST_TEST(!cut({8192, 8192, 8192}));
    BOOST_TEST(!cut({16384, 16384, 16384}));
    BOOST_TEST(!cut({16384, 7168, 8192}));
  }
}

// Few rows get a tile of few rows; where 128 x 128 tiles fill a fraction of the GPU, smaller tiles fill more of it;
// large GEMMs get large tiles.
BOOST_AUTO_TEST_CASE(the_choice_suits_the_shape) {
  for (const bool fast : {false, true}) {
    BOOST_TEST(choose_sm90_tiling(spec_of(fast), {16, 11008, 4096}, kH200).m == 64);
    BOOST_TEST(choose_sm90_tiling(spec_of(fast), {1024, 1024, 1024}, kH200).m == 64);
    const GemmTiling large = choose_sm90_tiling(spec_of(fast), {8192, 8192, 8192}, kH200);
    BOOST_TEST(large.m * large.n >= 128 * 128, print(large));
  }
  for (const MatmulSize size : {MatmulSize{16384, 16384, 16384}, MatmulSize{16384, 7168, 8192}}) {
    const GemmTiling accurate = choose_sm90_tiling(spec_of(false), size, kH200);
    BOOST_TEST(accurate.m * accurate.n > 128 * 128, print(accurate));
  }
}

// Sums and roundings in 64 bits would turn negative there, and the estimate small.
BOOST_AUTO_TEST_CASE(sizes_near_two_to_the_63_are_the_slowest) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  constexpr std::int64_t kHuge = std::int64_t{1} << 60;
  for (const bool fast : {false, true}) {
    const GemmSpec spec = spec_of(fast);
    for (const GemmTiling& tiling : gemm_tilings(spec)) {
      const auto us = [&](MatmulSize size) { return estimate_gemm(spec, size, tiling, kH200); };
      BOOST_TEST(us({kMost, kMost, kMost}) > us({kHuge, kHuge, kHuge}), print(tiling));
      BOOST_TEST(us({kMost, 64, 64}) > us({kHuge, 64, 64}), print(tiling));
      BOOST_TEST(us({64, 64, kMost}) > us({64, 64, kHuge}), print(tiling));
    }
    BOOST_TEST(estimate_cublaslt(spec, {kMost, kMost, kMost}, kH200) >
               estimate_cublaslt(spec, {kHuge, kHuge, kHuge}, kH200));
    BOOST_TEST(print_mma_tiling(choose_mma_tiling({}, {kMost, 1, 1}, kH200)) == "128x128");
  }
}

BOOST_AUTO_TEST_SUITE_END()
