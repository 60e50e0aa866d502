// Which kernels and tilings are candidates for a GEMM, in which order a call tries them, and which can run at all.
#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "ingot/codegen/gemm/gemm_candidates.h"

BOOST_AUTO_TEST_SUITE(test_gemm_candidates)

using namespace ingot;

namespace {

constexpr int kH200 = 132;
constexpr Target kHopper{9, 0, true};
constexpr MatmulSize kLarge{8192, 4096, 4096};

std::size_t count(const std::vector<GemmSpec>& all, GemmKernel kernel) {
  return static_cast<std::size_t>(std::ranges::count(all, kernel, &GemmSpec::kernel));
}

}  // namespace

BOOST_AUTO_TEST_CASE(each_names_a_kernel_of_the_same_gemm) {
  for (const Target target : {kHopper, Target{8, 0, false}, Target{10, 0, true}}) {
    for (const KernelSpec& spec : all_valid_specs()) {
      const auto* const gemm = std::get_if<GemmSpec>(&spec);
      if (gemm == nullptr) continue;
      const std::vector<GemmSpec> all =
          gemm_candidates({.spec = *gemm, .size = kLarge}, {.target = target, .multiprocessors = kH200});
      BOOST_REQUIRE(!all.empty());
      std::set<std::string> lines;
      for (const GemmSpec& candidate : all) {
        BOOST_REQUIRE((candidate.kernel != GemmKernel::automatic));
        BOOST_REQUIRE((without_kernel(candidate) == *gemm));
        validate(candidate);
        lines.insert(print(candidate));
      }
      BOOST_REQUIRE(lines.size() == all.size());
    }
  }
}

BOOST_AUTO_TEST_CASE(the_untuned_choice_comes_first) {
  const GemmSpec fast{.fast_accumulation = true};
  const std::vector<GemmSpec> all =
      gemm_candidates({.spec = fast, .size = kLarge}, {.target = kHopper, .multiprocessors = kH200});
  BOOST_TEST((all[0].kernel == GemmKernel::sm90));
  BOOST_TEST((all[0].tiling == choose_sm90_tiling(fast, kLarge, kH200)));
  BOOST_TEST((all[1].kernel == GemmKernel::cublaslt && all[1].algorithm == 0));
  const std::vector<GemmSpec> accurate =
      gemm_candidates({.spec = {}, .size = kLarge}, {.target = kHopper, .multiprocessors = kH200});
  BOOST_TEST((accurate[0].kernel == GemmKernel::cublaslt && accurate[0].algorithm == 0));
  BOOST_TEST((accurate[1].tiling == choose_sm90_tiling({}, kLarge, kH200)));
  BOOST_TEST(count(all, GemmKernel::cublaslt) == 8U);
  BOOST_TEST(count(all, GemmKernel::sm90) >= 2U);
  BOOST_TEST(count(all, GemmKernel::simt) == 0U);
}

BOOST_AUTO_TEST_CASE(implausible_tilings_are_left_out) {
  const GemmSpec fast{.fast_accumulation = true};
  const auto all = gemm_candidates({.spec = fast, .size = kLarge}, {.target = kHopper, .multiprocessors = kH200});
  BOOST_TEST(count(all, GemmKernel::sm90) < gemm_tilings(fast).size());
  const double best = estimate_gemm(fast, kLarge, choose_sm90_tiling(fast, kLarge, kH200), kH200);
  for (const GemmSpec& spec : all) {
    if (spec.kernel == GemmKernel::sm90) BOOST_TEST(estimate_gemm(fast, kLarge, *spec.tiling, kH200) <= 1.4 * best);
  }
}

BOOST_AUTO_TEST_CASE(what_can_run_at_all) {
  const auto of = [](const GemmSpec& spec, Target target) {
    return gemm_candidates({.spec = spec, .size = kLarge}, {.target = target, .multiprocessors = kH200});
  };
  // cuBLASLt takes groups of K on Hopper only; only gemm_mma takes fnuz formats; GPUs other than Hopper have no
  // gemm_sm90.
  const auto groups = of({.scale_a = kRowGroups, .scale_b = kBlocks}, kHopper);
  BOOST_TEST(count(groups, GemmKernel::cublaslt) == 8U);
  BOOST_TEST(count(of({.scale_a = kRowGroups, .scale_b = kBlocks}, {8, 9, false}), GemmKernel::cublaslt) == 0U);
  BOOST_TEST(count(of({.scale_a = kRowGroups, .scale_b = kBlocks}, {10, 0, true}), GemmKernel::cublaslt) == 0U);
  BOOST_TEST(count(groups, GemmKernel::sm90) > 0U);
  const auto fnuz = of({.a = Dtype::e4m3fnuz, .b = Dtype::e4m3fn}, kHopper);
  BOOST_TEST(fnuz.size() == 2U);
  BOOST_TEST(count(fnuz, GemmKernel::mma) == 2U);
  BOOST_TEST(count(of({}, {8, 9, false}), GemmKernel::cublaslt) == 8U);
  BOOST_TEST(count(of({}, {8, 9, false}), GemmKernel::sm90) == 0U);
  BOOST_TEST(count(of({.a = Dtype::bf16, .b = Dtype::bf16}, kHopper), GemmKernel::cublaslt) == 8U);
  BOOST_TEST(count(of({.a = Dtype::bf16, .b = Dtype::bf16}, kHopper), GemmKernel::sm90) >= 6U);
  BOOST_TEST(count(of({.a = Dtype::bf16, .b = Dtype::bf16}, {8, 0, false}), GemmKernel::sm90) == 0U);
  // gemm_mma takes what the others may refuse: an odd K, or FP8 on a GPU without FP8 tensor cores.
  BOOST_TEST(
      count(gemm_candidates({.spec = {}, .size = {8192, 4096, 4090}}, {.target = kHopper, .multiprocessors = kH200}),
            GemmKernel::mma) == 2U);
  BOOST_TEST(count(of({}, {8, 0, false}), GemmKernel::mma) == 2U);
  const auto f32 = of({.a = Dtype::f32, .b = Dtype::f32, .out = Dtype::f32}, kHopper);
  BOOST_TEST(count(f32, GemmKernel::simt) == 1U);
  BOOST_TEST(count(f32, GemmKernel::mma) == 0U);
}

namespace {

std::vector<std::string> order_of(const char* line, const MatmulSize& size, bool compiles = true) {
  const GemmCall call{.spec = std::get<GemmSpec>(parse(line)), .size = size};
  std::vector<std::string> kernels;
  for (const GemmSpec& spec : gemm_order(call, {.target = kHopper, .multiprocessors = kH200, .compiles = compiles})) {
    validate(spec);
    BOOST_TEST((spec.tiling.has_value() == (spec.kernel == GemmKernel::sm90 || spec.kernel == GemmKernel::mma)));
    const std::string staged = spec.staged_a ? spec.staged_b ? " a,b" : " a" : spec.staged_b ? " b" : "";
    kernels.push_back(std::string(name(spec.kernel)) + staged);
  }
  return kernels;
}

using Names = std::vector<std::string>;

}  // namespace

// The order in which a call tries kernels: large operands in an unsuitable layout are staged, small ones go to
// gemm_mma.
BOOST_AUTO_TEST_CASE(the_order_of_a_call) {
  BOOST_TEST_CHECK(order_of("gemm e4m3fn*e4m3fn->bf16 nt fast", kLarge) ==
                       (Names{"sm90", "cublaslt", "sm90 a", "sm90 b", "sm90 a,b", "mma", "simt"}),
                   boost::test_tools::per_element());
  BOOST_TEST_CHECK(order_of("gemm e4m3fn*e4m3fn->bf16 nt fast", kLarge, false) ==
                       (Names{"cublaslt", "sm90", "sm90 a", "sm90 b", "sm90 a,b", "mma", "simt"}),
                   boost::test_tools::per_element());
  BOOST_TEST_CHECK(order_of("gemm e4m3fn*e4m3fn->bf16 nt", kLarge) ==
                       (Names{"cublaslt", "sm90", "sm90 a", "sm90 b", "sm90 a,b", "mma", "simt"}),
                   boost::test_tools::per_element());
  BOOST_TEST_CHECK(order_of("gemm e4m3fn*e4m3fn->bf16 tt fast", kLarge) == (Names{"sm90 a", "sm90 a,b", "mma", "simt"}),
                   boost::test_tools::per_element());
  BOOST_TEST_CHECK(order_of("gemm e4m3fn*e4m3fn->bf16 tn fast", kLarge) == (Names{"sm90 a,b", "mma", "simt"}),
                   boost::test_tools::per_element());
  BOOST_TEST_CHECK(order_of("gemm e4m3fn*e4m3fn->bf16 tn fast", {64, 64, 64}) == (Names{"mma", "simt"}),
                   boost::test_tools::per_element());
  BOOST_TEST_CHECK(order_of("gemm e4m3fnuz*e4m3fn->bf16 nt", kLarge) == (Names{"mma", "simt"}),
                   boost::test_tools::per_element());
  BOOST_TEST_CHECK(order_of("gemm bf16*e4m3fn->bf16 nt", kLarge) == (Names{"mma", "simt"}),
                   boost::test_tools::per_element());
  // bf16 and f16 may have any layout; cuBLASLt comes first where they are stored along k and for small ones, but
  // refuses epilogues.
  const Names cublaslt_first{"cublaslt", "sm90", "mma", "simt"};
  for (const char* const line : {"gemm bf16*bf16->bf16 tn", "gemm f16*f16->f32 nn epilogue=silu(x)*gate"}) {
    BOOST_TEST_CHECK(order_of(line, kLarge) == (Names{"sm90", "cublaslt", "mma", "simt"}),
                     boost::test_tools::per_element());
    BOOST_TEST_CHECK(order_of(line, {64, 64, 64}) == cublaslt_first, boost::test_tools::per_element());
  }
  BOOST_TEST_CHECK(order_of("gemm bf16*bf16->bf16 nt", kLarge) == cublaslt_first, boost::test_tools::per_element());
  BOOST_TEST_CHECK(order_of("gemm f32*f32->f32 nt", kLarge) == (Names{"cublaslt", "simt"}),
                   boost::test_tools::per_element());
  // With scale_inv of groups cuBLASLt has what is larger than was measured, with c too.
  constexpr MatmulSize kLargest{16384, 16384, 16384};
  for (const std::string scale_b : {"128x128", "1x128"}) {
    const std::string line = "gemm e4m3fn*e4m3fn->bf16 nt scale=1x128," + scale_b;
    BOOST_TEST_CHECK(
        order_of(line.c_str(), kLargest) == (Names{"cublaslt", "sm90", "sm90 a", "sm90 b", "sm90 a,b", "mma", "simt"}),
        boost::test_tools::per_element());
    BOOST_TEST(order_of(line.c_str(), {256, 256, 256})[0] == "sm90");
    BOOST_TEST(order_of((line + " c=bf16").c_str(), kLargest)[0] == "cublaslt");
    BOOST_TEST(order_of((line + " c=bf16").c_str(), {256, 256, 256})[0] == "sm90");
  }
  // A kernel that is named is the only candidate, with the staging that its layouts require.
  BOOST_TEST_CHECK(order_of("gemm e4m3fn*e4m3fn->bf16 nn kernel=sm90", {64, 64, 64}) == (Names{"sm90 b"}),
                   boost::test_tools::per_element());
  BOOST_TEST_CHECK(order_of("gemm e4m3fn*e4m3fn->bf16 nt kernel=simt", kLarge) == (Names{"simt"}),
                   boost::test_tools::per_element());
}

BOOST_AUTO_TEST_SUITE_END()
