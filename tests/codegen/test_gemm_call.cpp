// GemmCall: it prints and parses as one line, errors quote what is wrong, and different calls have different hashes.
#include <boost/test/unit_test.hpp>

#include <set>
#include <string>

#include "ingot/codegen/gemm/gemm_call.h"
#include "support/expect_error.h"

BOOST_AUTO_TEST_SUITE(test_gemm_call)

using namespace ingot;
using test::check_contains;
using test::error_of;

BOOST_AUTO_TEST_CASE(one_line_there_and_back) {
  const GemmCall call{.spec = {.b = Dtype::e5m2, .fast_accumulation = true}, .size = {8192, 4096, 14336}};
  BOOST_TEST(print(call) == "gemm e4m3fn*e5m2->bf16 nt scale=tensor,tensor fast 8192 4096 14336");
  BOOST_TEST((parse_gemm_call(print(call)) == call));
  BOOST_TEST((parse_gemm_call("gemm e4m3fn * e5m2 -> bf16 fast  8192 4096\t14336 \r") == call));
}

BOOST_AUTO_TEST_CASE(a_choice_of_kernel_is_left_out) {
  const GemmCall call = parse_gemm_call("gemm e4m3fn*e4m3fn->bf16 kernel=sm90:128x128:2x1:6:cooperative 1 2 3");
  BOOST_TEST((call.spec == GemmSpec{}));
  BOOST_TEST((call.size == MatmulSize{1, 2, 3}));
}

BOOST_AUTO_TEST_CASE(what_is_wrong_is_quoted) {
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

BOOST_AUTO_TEST_CASE(hashes_differ) {
  std::set<std::size_t> hashes;
  for (const char* const line : {"gemm bf16*bf16->bf16 nt 1 2 3", "gemm bf16*bf16->bf16 nt 3 2 1",
                                 "gemm bf16*bf16->bf16 nt 1 3 2", "gemm bf16*bf16->f32 nt 1 2 3"}) {
    hashes.insert(hash_value(parse_gemm_call(line)));
  }
  BOOST_TEST(hashes.size() == 4U);
}

BOOST_AUTO_TEST_SUITE_END()
