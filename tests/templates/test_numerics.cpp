// The number formats compared with independent references: cuda_fp8.h, cuda_bf16.h and cuda_fp16.h on the host, and a
// float64 oracle (fp8_oracle.h). test_numerics_nightly.cpp checks all 2^32 inputs.
#include <bit>
#include <boost/test/unit_test.hpp>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <limits>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "ingot/codegen/types/dtype.h"
#include "numerics.cuh"
#include "tests/templates/fp8_oracle.h"
#include "tests/templates/numerics_checks.h"

BOOST_AUTO_TEST_SUITE(test_numerics)

using namespace ingot;
using oracle::kDefinition;

namespace {

using Fp8Formats = std::tuple<e4m3fn, e5m2, e4m3fnuz, e5m2fnuz>;
static_assert(std::tuple_size_v<Fp8Formats> == kFp8Dtypes.size(), "a format of kDtypeTable is not tested here");

// Equal, including the sign of zero; NaN equals NaN.
bool same(double a, double b) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
  return a == b && std::signbit(a) == std::signbit(b);
}

float nth_float(std::uint32_t bits) { return std::bit_cast<float>(bits); }

// Adds x and its neighbours up to `steps` ulps away, with both signs.
void add_around(std::set<std::uint32_t>& inputs, double x, std::uint32_t steps) {
  const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(std::fabs(x)));
  for (std::uint32_t step = 0; step <= steps; ++step) {
    for (const std::uint32_t near : {bits + step, bits - std::min(step, bits)}) {
      inputs.insert(near);
      inputs.insert(near | 0x80000000U);
    }
  }
}

// Every value and every rounding boundary of every format, and the corners of f32.
std::vector<std::uint32_t> corner_inputs() {
  constexpr std::uint32_t kSteps = 4;
  std::set<std::uint32_t> inputs;
  for (const auto& format : {kDefinition<e4m3fn>, kDefinition<e5m2>, kDefinition<e4m3fnuz>, kDefinition<e5m2fnuz>}) {
    const oracle::SlowOracle slow(format);
    for (const double value : slow.values()) add_around(inputs, value, kSteps);
    for (const double boundary : slow.boundaries()) add_around(inputs, boundary, kSteps);
    // Also the next value that the format would have, and the boundary before it.
    const double last_step = slow.values().back() - slow.values()[slow.values().size() - 2];
    add_around(inputs, slow.values().back() + last_step / 2, kSteps);
    add_around(inputs, slow.values().back() + last_step, kSteps);
  }
  for (int exponent = -149; exponent <= 127; ++exponent) add_around(inputs, std::ldexp(1.0, exponent), kSteps);
  add_around(inputs, FLT_MAX, kSteps);  // runs into Inf and NaN
  for (const std::uint32_t nan : {0x7f800001U, 0x7fbfffffU, 0x7fc00000U, 0x7fc12345U, 0x7fffffffU}) {
    inputs.insert(nan);
    inputs.insert(nan | 0x80000000U);
  }
  return {inputs.begin(), inputs.end()};
}

// A fixed pseudo-random function of the index (SplitMix64), so that a failure always names the same input.
float random_float(std::uint64_t index) {
  std::uint64_t x = (index + 1) * 0x9e3779b97f4a7c15U;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
  return nth_float(static_cast<std::uint32_t>((x ^ (x >> 31)) >> 32));
}

std::string report(const std::optional<checks::Mismatch>& mismatch) {
  return mismatch ? "input " + std::to_string(mismatch->index) + ": " + mismatch->text : "";
}

}  // namespace

BOOST_AUTO_TEST_CASE_TEMPLATE(all_codes_decode, F, Fp8Formats) {
  for (unsigned code = 0; code < 256; ++code) {
    const F typed{static_cast<u8>(code)};
    const double expected = oracle::value_of(kDefinition<F>, code);
    const double got = static_cast<double>(decode(typed));
    BOOST_TEST(same(got, expected),
               kDefinition<F>.name << " code " << code << " decodes to " << got << ", not " << expected);
    BOOST_TEST(same(static_cast<double>(to_float(typed)), expected));
    if constexpr (checks::kInCuda<F>) {
      const auto raw = __nv_cvt_fp8_to_halfraw(static_cast<__nv_fp8_storage_t>(code), checks::kCudaFormat<F>);
      const double cuda = oracle::value_of_f16(raw.x);
      BOOST_TEST(same(got, cuda),
                 kDefinition<F>.name << " code " << code << " decodes to " << got << ", but cuda_fp8.h gives " << cuda);
    }
  }
}

BOOST_AUTO_TEST_CASE_TEMPLATE(constants_of_the_formats, F, Fp8Formats) {
  const oracle::SlowOracle slow(kDefinition<F>);
  BOOST_TEST(F::kMax == slow.values().back());
  BOOST_TEST(oracle::value_of(kDefinition<F>, F::kMaxCode) == F::kMax);
  BOOST_TEST(std::isnan(oracle::value_of(kDefinition<F>, F::kNanCode)));
  BOOST_TEST(F::kHasInf == std::isinf(oracle::value_of(kDefinition<F>, 0x7c)));
  BOOST_TEST(sizeof(F) == 1U);
}

BOOST_AUTO_TEST_CASE_TEMPLATE(values_encode_to_their_codes, F, Fp8Formats) {
  for (unsigned code = 0; code < 256; ++code) {
    const double value = oracle::value_of(kDefinition<F>, code);
    if (!std::isfinite(value)) continue;
    BOOST_TEST(encode<F>(static_cast<float>(value)).bits == code);
  }
}

// Sends the corners through the slow oracle too, which checks the table's shortcut, and through every way of encoding.
BOOST_AUTO_TEST_CASE_TEMPLATE(corners_encode, F, Fp8Formats) {
  const oracle::SlowOracle slow(kDefinition<F>);
  const oracle::FastOracle fast(kDefinition<F>);
  const std::vector<std::uint32_t> inputs = corner_inputs();
  BOOST_TEST(inputs.size() > 10000U);
  for (const std::uint32_t bits : inputs) {
    const float x = nth_float(bits);
    BOOST_REQUIRE_EQUAL(fast.encode(x), slow.encode(static_cast<double>(x)));
    const std::string mismatch = checks::encode_mismatch<F>(x, fast);
    BOOST_REQUIRE_MESSAGE(mismatch.empty(), mismatch);
    const unsigned code = encode_software<F>(x).bits;
    BOOST_REQUIRE_EQUAL(encode<F>(x).bits, code);
    BOOST_REQUIRE_EQUAL(encode_pair<F>(x, 1.0F), (unsigned{encode<F>(1.0F).bits} << 8) | code);
    BOOST_REQUIRE_EQUAL(encode_pair<F>(1.0F, x), (code << 8) | encode<F>(1.0F).bits);
  }
}

BOOST_AUTO_TEST_CASE(corners_round_to_bf16_and_f16) {
  const std::vector<std::uint32_t> inputs = corner_inputs();
  BOOST_TEST(report(checks::first_mismatch(1, inputs.size(), [&](std::uint64_t i) { return nth_float(inputs[i]); })) ==
             "");
}

BOOST_AUTO_TEST_CASE(all_bf16_and_f16_codes_decode) {
  for (unsigned code = 0; code < 0x10000; ++code) {
    const auto bits = static_cast<u16>(code);
    const double from_bf16 = static_cast<double>(to_float(bf16{bits}));
    const double from_f16 = static_cast<double>(to_float(f16{bits}));
    BOOST_REQUIRE_MESSAGE(same(from_bf16, oracle::value_of_bf16(code)), "bf16 code " << code << " gives " << from_bf16);
    BOOST_REQUIRE_MESSAGE(same(from_f16, oracle::value_of_f16(code)), "f16 code " << code << " gives " << from_f16);
  }
}

BOOST_AUTO_TEST_CASE(all_bf16_and_f16_inputs_encode) {
  const auto from_bf16 = [](std::uint64_t i) { return to_float(bf16{static_cast<u16>(i)}); };
  const auto from_f16 = [](std::uint64_t i) { return to_float(f16{static_cast<u16>(i)}); };
  BOOST_TEST(report(checks::first_mismatch(1, 0x10000, from_bf16)) == "");
  BOOST_TEST(report(checks::first_mismatch(1, 0x10000, from_f16)) == "");
}

BOOST_AUTO_TEST_CASE(fifty_million_random_inputs_encode) {
  BOOST_TEST(report(checks::first_mismatch(2, 50'000'000, random_float)) == "");
}

// Every bf16 and f16 value is unchanged; every boundary between two of them, and its neighbours, rounds as float64
// says.
BOOST_AUTO_TEST_CASE(rounding_to_bf16_and_f16) {
  const auto check = [](float x) {
    const double exact = static_cast<double>(x);
    const unsigned as_bf16 = from_float<bf16>(x).bits;
    const unsigned as_f16 = from_float<f16>(x).bits;
    BOOST_REQUIRE_MESSAGE(same(oracle::value_of_bf16(as_bf16), oracle::round_to_bf16(exact)),
                          "bf16 of " << x << " gives code " << as_bf16 << ", not " << oracle::round_to_bf16(exact));
    BOOST_REQUIRE_MESSAGE(same(oracle::value_of_f16(as_f16), oracle::round_to_f16(exact)),
                          "f16 of " << x << " gives code " << as_f16 << ", not " << oracle::round_to_f16(exact));
  };
  for (unsigned code = 0; code < 0x10000; ++code) {
    const double bf16_value = oracle::value_of_bf16(code);
    const double f16_value = oracle::value_of_f16(code);
    if (!std::isnan(bf16_value)) BOOST_REQUIRE_EQUAL(from_float<bf16>(static_cast<float>(bf16_value)).bits, code);
    if (!std::isnan(f16_value)) BOOST_REQUIRE_EQUAL(from_float<f16>(static_cast<float>(f16_value)).bits, code);
    if (!std::isfinite(bf16_value) || !std::isfinite(f16_value)) continue;
    // Half way to the next value away from zero (for the largest: to where it would be); all are exact in f32.
    const std::uint32_t bf16_middle = (code << 16) + 0x8000U;
    const double f16_step = std::ldexp(1.0, std::max(std::ilogb(f16_value == 0 ? 1e-9 : f16_value), -14) - 10);
    const auto f16_middle =
        std::bit_cast<std::uint32_t>(static_cast<float>(f16_value + std::copysign(f16_step / 2, f16_value)));
    for (const std::uint32_t bits : {bf16_middle, f16_middle}) {
      for (const std::uint32_t near : {bits - 2, bits - 1, bits, bits + 1, bits + 2}) check(nth_float(near));
    }
  }
  for (std::uint64_t i = 0; i < 2'000'000; ++i) check(random_float(i));
}

BOOST_AUTO_TEST_CASE(f32_stays_as_it_is_but_for_nan) {
  for (const std::uint32_t bits : corner_inputs()) {
    const float x = nth_float(bits);
    BOOST_REQUIRE_EQUAL(float_bits(to_float(x)), bits);
    BOOST_REQUIRE_EQUAL(float_bits(from_float<f32>(x)), std::isnan(x) ? 0x7fc00000U : bits);
    BOOST_REQUIRE_EQUAL(is_nan(x), std::isnan(x));
  }
}

BOOST_AUTO_TEST_SUITE_END()
