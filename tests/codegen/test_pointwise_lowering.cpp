// lower(): which products become part of a sum, and which sigmoids may give a number for NaN; and that a NaN reaches
// the result in spite of it.
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <cstddef>
#include <limits>
#include <ostream>
#include <span>
#include <string>
#include <vector>

#include "codegen/pointwise_cases.h"
#include "ingot/codegen/pointwise/pointwise.h"
#include "ingot/codegen/pointwise/pointwise_lowering.h"
#include "ingot/codegen/pointwise/pointwise_program.h"

BOOST_AUTO_TEST_SUITE(test_pointwise_lowering)

using namespace ingot;

namespace {

// The steps that compute something, as text: the names of the leaves, and t0, t1 ... for what is computed.
std::string lowered(const char* text) {
  const Pointwise expression = parse_pointwise(text);
  const auto steps = expression.steps();
  const std::vector<LoweredStep> all = lower(expression);
  BOOST_REQUIRE(all.size() == steps.size());
  std::vector<std::string> names;
  std::string result;
  int count = 0;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const LoweredStep& step = all[i];
    if (steps[i].op == PointwiseOp::x) {
      names.emplace_back("x");
    } else if (steps[i].op == PointwiseOp::input) {
      names.push_back(expression.inputs()[steps[i].a].name);
    } else if (steps[i].op == PointwiseOp::constant) {
      names.push_back(std::to_string(static_cast<int>(steps[i].value)));
    } else if (step.kind == LoweredStep::Kind::part_of_another) {
      names.emplace_back("nothing");
    } else {
      if (step.kind == LoweredStep::Kind::multiply_add) {
        result += std::string(step.negates_product ? "-" : "") + names[step.a()] + " " + names[step.b()] +
                  (step.negates_addend ? " - " : " + ") + names[step.c()];
      } else {
        result += step.kind == LoweredStep::Kind::sigmoid_of_number ? "number" : "step";
        for (int k = 0; k < step.count; ++k) result += " " + names[step.operands[static_cast<std::size_t>(k)]];
      }
      result += "; ";
      names.push_back("t" + std::to_string(count++));
    }
  }
  return result;
}

float value(const Pointwise& expression, float x) {
  const std::vector<float> one(expression.inputs().size(), 1.0F);
  std::vector<PointwiseValues> inputs;
  for (const float& input : one) inputs.push_back({&input, true});
  float out = 0;
  PointwiseProgram(expression, PointwisePrecision::reproducible16).run(1, &x, inputs, &out);
  return out;
}

}  // namespace

BOOST_AUTO_TEST_CASE(products_become_part_of_sums) {
  BOOST_TEST(lowered("x * a + b") == "x a + b; ");
  BOOST_TEST(lowered("b + x * a") == "x a + b; ");
  BOOST_TEST(lowered("x * a - b") == "x a - b; ");
  BOOST_TEST(lowered("b - x * a") == "-x a + b; ");
  BOOST_TEST(lowered("x * a + x * b") == "step x a; x b + t0; ");
  BOOST_TEST(lowered("1 - x^2") == "-x x + 1; ");
  BOOST_TEST(lowered("(x * a + b) * a + b") == "x a + b; t0 a + b; ");
}

BOOST_AUTO_TEST_CASE(products_that_are_used_again_stay) {
  BOOST_TEST(lowered("exp(x * a) + x * a") == "step x a; step t0; step t1 t0; ");
  BOOST_TEST(lowered("x * a + x * a") == "step x a; step t0 t0; ");
  BOOST_TEST(lowered("x * a * b") == "step x a; step t0 b; ");
}

BOOST_AUTO_TEST_CASE(the_slope_of_a_sigmoid) {
  BOOST_TEST(lowered("sigmoid(x) * (1 - sigmoid(x))") == "step x; -t0 t0 + t0; ");
  BOOST_TEST(lowered("(1 - sigmoid(x)) * sigmoid(x)") == "step x; -t0 t0 + t0; ");
  // With any other factor, Inf times 0 would be possible where there was none.
  BOOST_TEST(lowered("x * (1 - x)") == "step 1 x; step x t0; ");
  BOOST_TEST(lowered("sigmoid(x) * (2 - sigmoid(x))") == "step x; step 2 t0; step t0 t1; ");
  const Pointwise derived = backward(parse_pointwise("silu(x)"), "x");
  BOOST_TEST(lowered(print(derived).c_str()) == "number x; -t0 t0 + t0; x t1 + t0; step grad t2; ");
}

BOOST_AUTO_TEST_CASE(sigmoids_whose_nan_is_needed) {
  BOOST_TEST(lowered("sigmoid(x)") == "step x; ");
  BOOST_TEST(lowered("sigmoid(a) * x") == "step a; step t0 x; ");
  BOOST_TEST(lowered("silu(x)") == "number x; step x t0; ");
  BOOST_TEST(lowered("x * sigmoid(2 * x)") == "step 2 x; number t0; step x t1; ");
  BOOST_TEST(lowered("x * sigmoid(3 - abs(x))") == "step x; step 3 t0; number t1; step x t2; ");
  // Inf - Inf is NaN, and neither is.
  BOOST_TEST(lowered("x * sigmoid(x - a)") == "step x a; step t0; step x t1; ");
  // The one would be NaN by the other only.
  BOOST_TEST(lowered("sigmoid(x) + sigmoid(2 * x)") == "step x; step 2 x; step t1; step t0 t2; ");
}

BOOST_AUTO_TEST_CASE(nan_stays_nan) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  for (const char* text : {"sigmoid(x)", "silu(x)", "silu(x) * gate", "x * sigmoid(2 * x)", "x * sigmoid(3 - abs(x))",
                           "sigmoid(x) * (1 - sigmoid(x))", "sigmoid(x) + sigmoid(2 * x)", "gelu_tanh(x)"}) {
    BOOST_TEST(std::isnan(value(parse_pointwise(text), kNan)), text);
    BOOST_TEST(std::isnan(value(derivative(parse_pointwise(text), "x"), kNan)), "derivative of " << text);
  }
}

// Wherever a NaN comes from: an input, or Inf - Inf and 0 * Inf inside.
BOOST_AUTO_TEST_CASE(nan_where_float64_has_nan) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  const std::vector<double> ends{std::numeric_limits<double>::quiet_NaN(), kInf, -kInf, 0, 1, -1};
  test::Random random(7);
  int found = 0;
  std::vector<Pointwise> expressions = test::many_expressions();
  for (const char* text : {"x * sigmoid(x - gate)", "x * sigmoid(gate * x)", "sigmoid(x) * gate + x",
                           "gate * sigmoid(x) - sigmoid(-x)", "max(x, gate) * sigmoid(2 * max(x, gate) - 1)"}) {
    expressions.push_back(parse_pointwise(text));
    expressions.push_back(derivative(expressions.back(), "x"));
  }
  for (const Pointwise& expression : expressions) {
    for (int i = 0; i < 200; ++i) {
      std::vector<double> values(1 + expression.inputs().size());
      for (double& value : values) value = ends[random() % ends.size()];
      const double expected = evaluate(expression, values[0], std::span(values).subspan(1));
      std::vector<float> singles(values.begin(), values.end());
      std::vector<PointwiseValues> inputs;
      for (std::size_t k = 1; k < singles.size(); ++k) inputs.push_back({&singles[k], true});
      float out = 0;
      PointwiseProgram(expression, PointwisePrecision::reproducible16).run(1, singles.data(), inputs, &out);
      if (!std::isnan(expected)) continue;
      ++found;
      BOOST_TEST(std::isnan(out), expression << " of x = " << values[0] << " is " << out);
    }
  }
  BOOST_TEST(found > 1000);
}

// A sum with a product rounds once: here the product alone would have rounded to 1.
BOOST_AUTO_TEST_CASE(rounds_once) {
  const float x = 1.0F + 0x1p-12F;
  BOOST_TEST(value(parse_pointwise("x^2 - 1"), x) == 0x1p-11F + 0x1p-24F);
  BOOST_TEST(value(parse_pointwise("1 - x^2"), x) == -(0x1p-11F + 0x1p-24F));
}

BOOST_AUTO_TEST_SUITE_END()
