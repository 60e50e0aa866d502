// MatmulSpec and MatmulCall: their text, kernel names and hashes, and kernels that they refuse.
#include "ingot/codegen/matmul.h"

#include <boost/test/unit_test.hpp>
#include <set>
#include <string>

#include "support/expect_error.h"
#include "support/refused.h"

BOOST_AUTO_TEST_SUITE(test_matmul)

using namespace ingot;
using ingot::test::check_contains;
using ingot::test::error_of;
using ingot::test::refused;

BOOST_AUTO_TEST_CASE(a_kernel_is_named_as_the_line_names_it) {
  const auto of = [](const char* line) { return kernel_of(parse_matmul_spec(line)); };
  BOOST_TEST(of("gemm e4m3fn*e4m3fn->bf16 fast kernel=sm90:128x128:2x1:6:pingpong") == "sm90:128x128:2x1:6:pingpong");
  BOOST_TEST(of("gemm e4m3fn*e4m3fn->bf16 bias epilogue=x+y kernel=mma:64x64") == "mma:64x64");
  BOOST_TEST(of("gemm bf16*bf16->bf16 kernel=cublaslt:3") == "cublaslt:3");
  BOOST_TEST(of("gemm bf16*bf16->bf16") == "automatic");
  BOOST_TEST(of("dequant_matmul bf16*e4m3fn->bf16 packed scale=row") == "automatic");
  BOOST_TEST(of("dequant_matmul bf16*e4m3fn->bf16 packed scale=row kernel=mma") == "mma");
}

BOOST_AUTO_TEST_CASE(calls_there_and_back) {
  for (const char* const line : {"gemm e4m3fn*e5m2->bf16 nt scale=tensor,tensor fast 8192 4096 14336",
                                 "dequant_matmul bf16*e4m3fn->bf16 packed scale=row 16 4096 14336",
                                 "dequant_matmul f16*e2m1fn->f16 packed scale=1x32 factors=e8m0fnu 1 28672 8192"}) {
    BOOST_TEST(print(parse_matmul_call(line)) == line);
  }
}

BOOST_AUTO_TEST_CASE(a_choice_of_kernel_is_left_out) {
  const MatmulCall call = parse_matmul_call("dequant_matmul bf16*e4m3fn->bf16 packed scale=row kernel=mma 1 2 3");
  BOOST_TEST((call.spec == MatmulSpec(DequantMatmulSpec{})));
  BOOST_TEST((call.size == MatmulSize{1, 2, 3}));
  DequantMatmulSpec named{.kernel = DequantKernel::mma};
  BOOST_TEST(names_kernel(named));
  BOOST_TEST(!names_kernel(without_kernel(MatmulSpec(named))));
  named = {.tiling = DequantTiling{}};
  BOOST_TEST(names_kernel(named));
}

// Tuning may choose by M, so it chooses for everything but a matmul whose result must not depend on M.
BOOST_AUTO_TEST_CASE(what_tuning_may_choose) {
  BOOST_TEST(is_tuned(GemmSpec{}));
  for (const bool batch_invariant : {false, true}) {
    const DequantMatmulSpec spec{.batch_invariant = batch_invariant};
    BOOST_TEST(is_tuned(spec) == !batch_invariant);
    BOOST_TEST(is_tuned(MatmulSpec(spec)) == !batch_invariant);
  }
  BOOST_TEST(is_tuned(MatmulSpec(GemmSpec{})));
}

BOOST_AUTO_TEST_CASE(hashes_tell_products_and_sizes_apart) {
  std::set<std::size_t> hashes;
  for (const MatmulSpec& spec :
       {MatmulSpec(GemmSpec{}), MatmulSpec(DequantMatmulSpec{}), MatmulSpec(DequantMatmulSpec{.bias = true})}) {
    for (const MatmulSize size : {MatmulSize{1, 2, 3}, MatmulSize{2, 1, 3}, MatmulSize{1, 2, 4}}) {
      hashes.insert(hash_value(MatmulCall{spec, size}));
    }
  }
  BOOST_TEST(hashes.size() == 9U);
}

BOOST_AUTO_TEST_CASE(other_kernels_are_refused) {
  const auto error = refused([] { parse_matmul_spec("column_sum bf16->f32"); });
  BOOST_TEST(error.message.find("is no GEMM and no dequant_matmul") != std::string::npos, error.message);
  BOOST_TEST(refused([] {
               parse_matmul_call("dequant_matmul bf16*e4m3fn->bf16 packed scale=row 16 4096");
             }).message.find("expected the spec of a matmul and then its m, n and k") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(a_size_that_no_tensor_has_is_refused) {
  const auto message = [](const std::string& sizes) {
    return refused([&] { parse_matmul_call("gemm bf16*bf16->bf16 nt " + sizes); }).message;
  };
  const std::string line = "gemm bf16*bf16->bf16 nt ";
  BOOST_TEST(message("281474976710656 1 1") == "nothing was thrown");
  BOOST_TEST(message("281474976710657 1 1") ==
             line + "281474976710657 1 1: m is 281474976710657, but may be at most 281474976710656 (2^48)");
  BOOST_TEST(message("1 1 9223372036854775807") ==
             line + "1 1 9223372036854775807: k is 9223372036854775807, but may be at most 281474976710656 (2^48)");
}

// ---- GemmCall ----

BOOST_AUTO_TEST_CASE(gemm_calls_there_and_back) {
  const GemmCall call{.spec = {.b = Dtype::e5m2, .fast_accumulation = true}, .size = {8192, 4096, 14336}};
  BOOST_TEST(print(call) == "gemm e4m3fn*e5m2->bf16 nt scale=tensor,tensor fast 8192 4096 14336");
  BOOST_TEST((parse_gemm_call(print(call)) == call));
  BOOST_TEST((parse_gemm_call("gemm e4m3fn * e5m2 -> bf16 fast  8192 4096\t14336 \r") == call));
}

BOOST_AUTO_TEST_CASE(a_gemm_calls_choice_of_kernel_is_left_out) {
  const GemmCall call = parse_gemm_call("gemm e4m3fn*e4m3fn->bf16 kernel=sm90:128x128:2x1:6:cooperative 1 2 3");
  BOOST_TEST((call.spec == GemmSpec{}));
  BOOST_TEST((call.size == MatmulSize{1, 2, 3}));
}

BOOST_AUTO_TEST_CASE(what_is_wrong_of_a_gemm_call_is_quoted) {
  const auto error = [](const std::string& line) {
    return error_of([&] { static_cast<void>(parse_gemm_call(line)); }, ErrorCode::invalid_spec);
  };
  check_contains(error(""), {"\"\" is no k"});
  check_contains(error("12"), {"\"\" is no n"});
  check_contains(error("gemm bf16*bf16->bf16 nt 8 8 x"), {"\"x\" is no k", "8192 4096 4096"});
  check_contains(error("gemm bf16*bf16->bf16 nt 8 0 8"), {"\"0\" is no n"});
  check_contains(error("gemm bf16*bf16->bf16 nt 8 8"), {"\"nt\" is no m"});
  check_contains(error("gemm bf16*bf16->bf16 nt -8 8 8"), {"\"-8\" is no m"});
  check_contains(error("gemm bf16*bf17->bf16 nt 8 8 8"), {"bf17"});
  check_contains(error("amax bf16 scale=tensor 8 8 8"), {"is no GEMM"});
}

BOOST_AUTO_TEST_CASE(hashes_of_gemm_calls_differ) {
  std::set<std::size_t> hashes;
  for (const char* const line : {"gemm bf16*bf16->bf16 nt 1 2 3", "gemm bf16*bf16->bf16 nt 3 2 1",
                                 "gemm bf16*bf16->bf16 nt 1 3 2", "gemm bf16*bf16->f32 nt 1 2 3"}) {
    hashes.insert(hash_value(parse_gemm_call(line)));
  }
  BOOST_TEST(hashes.size() == 4U);
}

BOOST_AUTO_TEST_SUITE_END()
