// Which GEMMs gemm_mma takes, and the reasons for its refusals.
#include "ingot/runtime/gemm/gemm_rules.h"

#include <boost/test/unit_test.hpp>
#include <cstdint>
#include <string>

#include "ingot/runtime/gemm/gemm_params.h"

BOOST_AUTO_TEST_SUITE(test_gemm_mma_rules)

namespace {

using namespace ingot;

std::string refusal(const GemmSpec& spec, const MatmulSize& size, Target target = target_for(9, 0)) {
  const char* const reason = mma_refusal(spec, size, target);
  return reason == nullptr ? "" : reason;
}

constexpr MatmulSize kShape{33, 65, 47};

}  // namespace

BOOST_AUTO_TEST_CASE(what_it_takes) {
  for (const Target target : kSupportedTargets) BOOST_TEST(refusal({}, kShape, target) == "");
  for (const Dtype a : kFp8Dtypes) {
    for (const Dtype b : kFp8Dtypes) BOOST_TEST(refusal({.a = a, .b = b}, kShape) == "");
  }
  BOOST_TEST(refusal({.a = Dtype::f16, .b = Dtype::f16, .layout_a = Layout::mn_major}, kShape) == "");
  BOOST_TEST(refusal({}, {1, 1, 0}) == "");
  BOOST_TEST(refusal({}, {std::int64_t{1} << 36, 1, 1}) == "");
}

BOOST_AUTO_TEST_CASE(what_it_refuses) {
  BOOST_TEST(refusal({}, kShape, target_for(7, 5)) == "kernel mma runs on sm_80 and later");
  const GemmSpec plain{.a = Dtype::f32, .b = Dtype::f32, .out = Dtype::f32};
  BOOST_TEST(refusal(plain, kShape) == "kernel mma multiplies FP8, bf16 and f16 only");
  const std::string tiles = "kernel mma takes fewer than 2^31 tiles";
  BOOST_TEST(refusal({}, {std::int64_t{1} << 38, 1, 1}) == tiles);
  BOOST_TEST(refusal({}, {1, std::int64_t{1} << 35, 1}) == tiles);
  BOOST_TEST(refusal({}, {std::int64_t{1} << 22, std::int64_t{1} << 22, 1}) == tiles);
}

// How many bytes may be copied at a time: 16, 4, or none.
BOOST_AUTO_TEST_CASE(how_rows_are_copied) {
  const auto copied = [](std::uintptr_t address, i64 row_bytes) {
    return mma_copied_bytes(reinterpret_cast<void*>(address), row_bytes);
  };
  BOOST_TEST(copied(0x1000, 48) == 16U);
  BOOST_TEST(copied(0x1004, 48) == 4U);
  BOOST_TEST(copied(0x1000, 44) == 4U);
  BOOST_TEST(copied(0x1002, 48) == 0U);
  BOOST_TEST(copied(0x1000, 47) == 0U);
}

BOOST_AUTO_TEST_SUITE_END()
