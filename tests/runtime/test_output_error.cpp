// The error measure for outputs: what counts as an error, and how large it is.
#include "ingot/runtime/measure/output_error.h"

#include <boost/test/unit_test.hpp>
#include <cmath>
#include <limits>
#include <vector>

BOOST_AUTO_TEST_SUITE(test_output_error)

using namespace ingot;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

std::vector<RightValue> right(const char* expression, const std::vector<float>& x, const OutputFormat& format) {
  return right_values(*expression == '\0' ? Pointwise{} : parse_pointwise(expression), x, {}, 1.0F, format);
}

// The error of a single value.
double error(const char* expression, float x, float actual, Dtype dtype = Dtype::f32) {
  return output_error(std::vector{actual}, right(expression, {x}, {dtype}), {dtype});
}

}  // namespace

BOOST_AUTO_TEST_CASE(of_plain_sums) {
  BOOST_TEST(error("", 1.0F, 1.0F) == 0);
  BOOST_TEST(error("", 1.0F, 1.5F) == 0.25);  // of the value and the sums' size
  BOOST_TEST(error("", 0.0F, 0.25F) == 0.25);
  BOOST_TEST(error("", 1.0F, 1e9F) == 1);
  BOOST_TEST(error("", 1.0F, NAN) == 1);
  BOOST_TEST(error("", 1.0F, kInf) == 1);
  BOOST_TEST(output_error(std::vector{1.0F, 1.5F, 1.0F, 1.0F}, right("", {1, 1, 1, 1}, {}), {}) == 0.125);
}

// Relative to the error that an error of x causes.
BOOST_AUTO_TEST_CASE(of_a_function) {
  const float x = 0.01F;
  BOOST_TEST(error("1 / x", x, 1 / (x + 0.003F)) < 0.01);
  BOOST_TEST(error("1 / x", 0.1F, -10.0F) > 0.1);
  BOOST_TEST(error("exp(20*x)", 1.0F, static_cast<float>(std::exp(20 * 1.003))) < 0.01);
  BOOST_TEST(error("exp(20*x)", 1.0F, static_cast<float>(std::exp(20 * 1.3))) > 0.1);
  BOOST_TEST(error("step(x)", 0.001F, 0.0F) < 0.01);  // either side of its step
  BOOST_TEST(error("step(x)", 0.1F, 0.0F) == 1);
  BOOST_TEST(error("relu(x)", -1.0F, 0.0F) == 0);
  BOOST_TEST(error("relu(x)", -1.0F, 1e-6F) == 1);
  BOOST_TEST(error("log(x)", -1.0F, NAN) == 0);
  BOOST_TEST(error("log(x)", -1.0F, 1.0F) == 1);
  BOOST_TEST(error("log(x)", 0.001F, NAN) == 0);  // a rounding of x away from it
  BOOST_TEST(error("exp(1000*x)", 1.0F, kInf) == 0);
  BOOST_TEST(error("exp(1000*x)", 1.0F, 5.0F) == 1);
}

BOOST_AUTO_TEST_CASE(of_inputs) {
  const std::vector<float> x{1, 2};
  const std::vector<float> gate{3, 4};
  const float r = 10;
  const std::vector<PointwiseValues> inputs{{.values = gate.data()}, {.values = &r, .same = true}};
  const auto expected = right_values(parse_pointwise("x*gate+r[row]"), x, inputs, 1.0F, {});
  BOOST_TEST(expected[0].value == 13);
  BOOST_TEST(expected[1].value == 18);
  BOOST_TEST(std::fabs(expected[1].scale - (18 + 4)) < 0.01F);
}

// An error of x near the midpoint of two codes gives the other code.
BOOST_AUTO_TEST_CASE(of_codes) {
  BOOST_TEST(stored_value(1.05F, {Dtype::e4m3fn, 1.0F}) == 1.0F);
  BOOST_TEST(error("", 1.05F, 1.0F, Dtype::e4m3fn) == 0);
  BOOST_TEST(error("", 1.05F, 1.125F, Dtype::e4m3fn) < 0.01);  // the midpoint is at 1.0625
  BOOST_TEST(error("", 1.05F, 1.25F, Dtype::e4m3fn) > 0.03);
  BOOST_TEST(error("", 1000.0F, 448.0F, Dtype::e4m3fn) == 0);
  BOOST_TEST(error("", 1000.0F, 416.0F, Dtype::e4m3fn) > 0.2);
  BOOST_TEST(stored_value(1.05F, {Dtype::e4m3fn, 2.0F}) == 1.0F);
  BOOST_TEST(stored_value(1.1F, {Dtype::e5m2fnuz, 4.0F}) == 1.0F);
  BOOST_TEST(stored_value(1.001F, {Dtype::bf16, 1.0F}) == 1.0F);
}

BOOST_AUTO_TEST_CASE(of_values_that_overflow) {
  BOOST_TEST(stored_value(1e9F, {Dtype::f16, 1.0F}) == kInf);
  BOOST_TEST(error("", 1e9F, kInf, Dtype::f16) == 0);
  BOOST_TEST(error("", 65519.0F, kInf, Dtype::f16) < 0.001);
  BOOST_TEST(error("", 65521.0F, 65504.0F, Dtype::f16) < 0.001);
  BOOST_TEST(error("", 1.0F, kInf, Dtype::f16) == 1);
  BOOST_TEST(error("", 1.0F, -kInf, Dtype::bf16) == 1);
}

BOOST_AUTO_TEST_CASE(sizes) {
  BOOST_TEST(root_mean_square(std::vector{3.0F, -3.0F}) == 3.0F);
  BOOST_TEST(root_mean_square({}) == 0.0F);
}

BOOST_AUTO_TEST_SUITE_END()
