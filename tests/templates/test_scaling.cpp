// Compares scale and scale_inv with f64 and IEEE division, for every significand and over all exponents.
#include "scaling.cuh"

#include <boost/test/unit_test.hpp>
#include <cmath>
#include <cstdint>
#include <limits>

BOOST_AUTO_TEST_SUITE(test_scaling)

namespace {

using ingot::float_bits;
using ingot::float_from_bits;

template <class F>
float expected_scale(float amax) {
  const double clamped = static_cast<double>(amax) < 1e-12 ? 1e-12 : static_cast<double>(amax);
  return static_cast<float>(F::kMax / clamped);
}

// Returns the first amax of begin, begin + step, ... <= end whose scale or scale_inv differs from f64's and IEEE's.
template <class F>
void check_range(std::uint32_t begin, std::uint32_t end, std::uint32_t step) {
  for (std::uint64_t bits = begin; bits <= end; bits += step) {
    const float amax = float_from_bits(static_cast<std::uint32_t>(bits));
    const float scale = ingot::scale_from_amax<F>(amax, false);
    const float expected = expected_scale<F>(amax);
    const float factor = ingot::factor_from_dynamic_scale(scale);
    if (float_bits(scale) != float_bits(expected) || float_bits(factor) != float_bits(1.0F / expected) ||
        float_bits(factor) != float_bits(ingot::factor_from_scale(scale))) {
      BOOST_FAIL("amax " << amax << " (bits " << bits << "): scale " << scale << ", expected " << expected
                         << "; factor " << factor << ", expected " << 1.0F / expected);
    }
  }
}

template <class F>
void check_format() {
  check_range<F>(0x3f800000, 0x40000000, 1);  // every significand
  check_range<F>(0, 0x7f800000, 1009);        // all exponents, subnormals and Inf
  check_range<F>(0x2b8cbc00, 0x2b8cbd00, 1);  // around 1e-12
  check_range<F>(0x7f7fff00, 0x7f800000, 1);  // up to Inf
}

}  // namespace

BOOST_AUTO_TEST_CASE(e4m3fn) { check_format<ingot::e4m3fn>(); }
BOOST_AUTO_TEST_CASE(e5m2) { check_format<ingot::e5m2>(); }
BOOST_AUTO_TEST_CASE(e4m3fnuz) { check_format<ingot::e4m3fnuz>(); }
BOOST_AUTO_TEST_CASE(e5m2fnuz) { check_format<ingot::e5m2fnuz>(); }

BOOST_AUTO_TEST_CASE(reciprocal_of_every_significand) {
  for (std::uint32_t bits = 0x3f800000; bits < 0x40000000; ++bits) {
    const float x = float_from_bits(bits);
    if (float_bits(ingot::quotient(1.0F, x)) != float_bits(1.0F / x)) BOOST_FAIL("1 / " << x);
  }
}

BOOST_AUTO_TEST_CASE(a_power_of_two_scale_is_rounded_down) {
  for (float amax : {1e-30F, 1e-3F, 0.75F, 1.0F, 3.0F, 447.0F, 448.0F, 449.0F, 1e30F}) {
    const float scale = ingot::scale_from_amax<ingot::e4m3fn>(amax, true);
    const double exact = static_cast<double>(expected_scale<ingot::e4m3fn>(amax));
    BOOST_TEST(static_cast<double>(scale) == std::exp2(std::floor(std::log2(exact))));
  }
}

// IEEE's quotient, whatever scale a caller gives: negative, subnormal, and so large that the scale_inv is subnormal.
BOOST_AUTO_TEST_CASE(factors_of_given_scales) {
  const auto check = [](std::uint32_t bits) {
    const float scale = float_from_bits(bits);
    for (const float each : {scale, -scale}) {
      const float factor = ingot::factor_from_scale(each);
      if (float_bits(factor) != float_bits(1.0F / each)) {
        BOOST_FAIL("scale " << each << " (bits " << bits << "): factor " << factor << ", expected " << 1.0F / each);
      }
    }
  };
  for (std::uint64_t bits = 0; bits < 0x7f800000U; bits += 1013) check(static_cast<std::uint32_t>(bits));
  for (std::uint32_t bits = 0; bits < 4096; ++bits) check(bits);                       // the least subnormal ones
  for (std::uint32_t bits = 0x7fff00; bits < 0x800100U; ++bits) check(bits);           // around 2^-126
  for (std::uint32_t bits = 0x7e7fff00U; bits < 0x7e800100U; ++bits) check(bits);      // around 2^126
  for (std::uint32_t bits = 0x7e800000U; bits < 0x7f800000U; bits += 61) check(bits);  // subnormal scale_inv
  for (std::uint32_t bits = 0x7f7ff000U; bits < 0x7f800000U; ++bits) check(bits);
  for (const float none : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    BOOST_TEST(float_bits(ingot::factor_from_scale(none)) == ingot::kF32Nan);
    BOOST_TEST(float_bits(ingot::factor_from_scale(-none)) == ingot::kF32Nan);
  }
}

// With a given scale, an Inf must not look like the largest number.
BOOST_AUTO_TEST_CASE(inf_is_nan_with_a_given_scale) {
  const auto check = []<class Format>(Format) {
    const float inf = std::numeric_limits<float>::infinity();
    for (const float scale : {1e-3F, 1.0F, 448.0F, 1e30F}) {
      for (const float x : {inf, -inf, std::numeric_limits<float>::quiet_NaN()}) {
        BOOST_TEST(ingot::is_nan(ingot::to_float(ingot::quantize_given<Format>(x, scale))));
      }
      for (const float x : {0.0F, -0.0F, 1.0F, -3.5F, 1e-45F, -1e-45F, 3e38F, -3e38F, 447.9F, -0.001F}) {
        BOOST_TEST(ingot::quantize_given<Format>(x, scale).bits == ingot::encode<Format>(x * scale).bits);
      }
    }
  };
  check(ingot::e4m3fn{});
  check(ingot::e5m2{});
  check(ingot::e4m3fnuz{});
  check(ingot::e5m2fnuz{});
}

BOOST_AUTO_TEST_CASE(nan_stays_and_inf_gives_zero) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  BOOST_TEST(std::isnan(ingot::scale_from_amax<ingot::e4m3fn>(nan, false)));
  BOOST_TEST(std::isnan(ingot::scale_from_amax<ingot::e4m3fn>(-nan, true)));
  BOOST_TEST(float_bits(ingot::factor_from_scale(float_from_bits(0xffc00001U))) == ingot::kF32Nan);
  BOOST_TEST((ingot::scale_from_amax<ingot::e5m2>(std::numeric_limits<float>::infinity(), false) == 0.0F));
  BOOST_TEST(std::isinf(ingot::factor_from_scale(0.0F)));
}

BOOST_AUTO_TEST_SUITE_END()
