// When one launch computes two GEMMs.
#include <boost/test/unit_test.hpp>

#include <optional>
#include <string>

#include "ingot/codegen/gemm/gemm_candidates.h"
#include "ingot/codegen/kernel_spec.h"

BOOST_AUTO_TEST_SUITE(test_gemm_pair_choice)

using namespace ingot;

namespace {

constexpr MatmulDevice kH200{.target = {9, 0, true}, .multiprocessors = 132};

GemmSpec spec_of(const std::string& line) { return std::get<GemmSpec>(parse("gemm " + line)); }

struct Kinds {
  GemmSpec grad_input, grad_weight;
};

const Kinds& bf16() {
  static const Kinds kinds{spec_of("bf16*bf16->bf16 nn"), spec_of("bf16*bf16->bf16 tn")};
  return kinds;
}
Kinds of_both(const std::string& line) { return {spec_of(line), spec_of(line)}; }

std::optional<GemmPairSpec> chosen(const Kinds& kinds, std::int64_t tokens, std::int64_t in, std::int64_t out,
                                   const MatmulDevice& device = kH200) {
  return choose_gemm_pair({.spec = kinds.grad_input, .size = {.m = tokens, .n = in, .k = out}},
                          {.spec = kinds.grad_weight, .size = {.m = out, .n = in, .k = tokens}}, device);
}

}  // namespace

BOOST_AUTO_TEST_CASE(small_gemms_are_pairs) {
  for (const Kinds& kinds :
       {bf16(), of_both("e5m2*e4m3fn->bf16 nt scale=tensor,tensor"), of_both("e4m3fn*e4m3fn->bf16 nt scale=row,row"),
        Kinds{spec_of("e4m3fn*e4m3fn->bf16 nt scale=1x128,128x128"),
              spec_of("e4m3fn*e4m3fn->f32 nt scale=1x128,1x128 c=f32")},
        Kinds{spec_of("e4m3fn*e4m3fn->bf16 nt scale=row,tensor"), bf16().grad_weight}}) {
    const bool has_fp8 = is_fp8(kinds.grad_input.a);
    BOOST_TEST(chosen(kinds, 512, 512, 512).has_value() == !has_fp8);  // a side stream is faster
    for (const std::int64_t n : {900, 1024}) {
      const auto pair = chosen(kinds, n, n, n);
      BOOST_REQUIRE_MESSAGE(pair, print(kinds.grad_input) << " " << n);
      validate(*pair);
      GemmSpec plain = pair->first;
      plain.kernel = GemmKernel::automatic;
      plain.tiling.reset();
      BOOST_TEST((plain == kinds.grad_input));
    }
    for (const std::int64_t n : {4096, 8192}) BOOST_TEST(!chosen(kinds, n, n, n).has_value(), n);
  }
}

// As an H200 had them (bench/results/gradients_h200.json): two launches were faster.
BOOST_AUTO_TEST_CASE(small_tiles_have_few_rounds) {
  for (const Kinds& kinds : {of_both("e5m2*e4m3fn->bf16 nt scale=tensor,tensor fast"),
                             Kinds{spec_of("e4m3fn*e4m3fn->bf16 nt scale=1x128,128x128"),
                                   spec_of("e4m3fn*e4m3fn->bf16 nt scale=1x128,1x128")}}) {
    BOOST_TEST(!chosen(kinds, 64, 4096, 4096).has_value());
  }
  BOOST_TEST(!chosen(bf16(), 1536, 1536, 1536).has_value());
  const auto large = chosen(of_both("e4m3fn*e4m3fn->bf16 nt scale=row,row"), 1536, 1536, 1536);
  BOOST_REQUIRE(large.has_value());
  BOOST_TEST(large->first.tiling->m * large->first.tiling->n >= 128 * 128);
}

BOOST_AUTO_TEST_CASE(pairs_are_for_hopper) {
  BOOST_TEST(!chosen(bf16(), 512, 512, 512, {.target = {8, 0, false}, .multiprocessors = 108}).has_value());
  BOOST_TEST(!chosen(bf16(), 512, 512, 512, {.target = {9, 0, true}, .multiprocessors = 1}).has_value());
  BOOST_TEST(!chosen(of_both("f32*f32->f32 nn"), 512, 512, 512).has_value());
  BOOST_TEST(!chosen(of_both("e4m3fnuz*e4m3fnuz->bf16 nt scale=row,row"), 1024, 1024, 1024).has_value());
  // Operands that would have to be staged, an epilogue, and nothing to multiply.
  BOOST_TEST(!chosen(of_both("e4m3fn*e4m3fn->bf16 nn scale=row,row"), 1024, 1024, 1024).has_value());
  BOOST_TEST(!chosen(of_both("e4m3fn*e4m3fn->bf16 nt scale=row,row bias"), 1024, 1024, 1024).has_value());
  BOOST_TEST(!chosen(bf16(), 0, 512, 512).has_value());
  BOOST_TEST(!chosen(bf16(), 512, 512, 0).has_value());
}

BOOST_AUTO_TEST_CASE(named_kernels_are_a_pair_of_any_size_or_none) {
  const std::string tiling = " kernel=sm90:64x128:1x1:8:pingpong";
  const Kinds named{spec_of("bf16*bf16->bf16 nn" + tiling), spec_of("bf16*bf16->bf16 tn" + tiling)};
  const auto pair = chosen(named, 8192, 8192, 8192);
  BOOST_REQUIRE(pair.has_value());
  BOOST_TEST((pair->first == named.grad_input && pair->second == named.grad_weight));
  BOOST_TEST(!chosen({named.grad_input, bf16().grad_weight}, 512, 512, 512).has_value());
  BOOST_TEST(!chosen({bf16().grad_input, spec_of("bf16*bf16->bf16 tn kernel=cublaslt:1")}, 512, 512, 512).has_value());
  BOOST_TEST(
      !chosen(of_both("e4m3fn*e4m3fn->bf16 nt kernel=sm90:128x128:2x1:6:cooperative"), 512, 512, 512).has_value());
}

BOOST_AUTO_TEST_SUITE_END()
