// PointwiseProgram, the CPU's evaluation of expressions over arrays: near float64, any length, in place, and refusals.
#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "codegen/pointwise_cases.h"
#include "ingot/codegen/pointwise/pointwise.h"
#include "ingot/codegen/pointwise/pointwise_program.h"
#include "ingot/runtime/util/error.h"
#include "support/expect_error.h"

BOOST_AUTO_TEST_SUITE(test_pointwise_program)

using namespace ingot;
using namespace ingot::test;

namespace {

constexpr float kPoison = -12345.0F;

std::vector<float> random_row(std::uint64_t seed, std::size_t count, double low, double high) {
  Random random(seed);
  std::vector<float> row(count);
  for (float& value : row) value = static_cast<float>(between(random, low, high));
  return row;
}

double relative_error(PointwisePrecision precision) {
  return precision == PointwisePrecision::reproducible32 ? 0x1p-20 : 0x1p-9;
}

// A bound for the error of the f32 steps: each step's own, and its operands', |f(a +- error) - f(a)| by differences.
struct Bounded {
  double value, error;
};
Bounded bounded(const Pointwise& expression, double x, const std::vector<double>& inputs, double each) {
  std::vector<Bounded> steps;
  const auto alone = [](PointwiseOp op, double a, double b) {
    static const std::vector<std::pair<PointwiseOp, Pointwise>> kOne = [] {
      std::vector<std::pair<PointwiseOp, Pointwise>> made;
      for (const char* text :
           {"exp(x)", "expm1(x)", "log(x)", "log1p(x)", "tanh(x)", "sigmoid(x)", "erf(x)", "sqrt(x)", "rsqrt(x)",
            "abs(x)", "sign(x)", "step(x)", "-x", "x + b", "x - b", "x * b", "x / b", "max(x, b)", "min(x, b)"}) {
        made.emplace_back(parse_pointwise(text).steps().back().op, parse_pointwise(text));
      }
      return made;
    }();
    const Pointwise& one = std::ranges::find(kOne, op, [](const auto& pair) { return pair.first; })->second;
    const std::vector<double> other(one.inputs().size(), b);
    return evaluate(one, a, other);
  };
  for (const PointwiseStep& step : expression.steps()) {
    if (step.op == PointwiseOp::constant) {
      steps.push_back({step.value, 0});
    } else if (step.op == PointwiseOp::x) {
      steps.push_back({x, 0});
    } else if (step.op == PointwiseOp::input) {
      steps.push_back({inputs[step.a], 0});
    } else {
      const Bounded a = steps[step.a];
      const Bounded b = arity(step.op) == 2 ? steps[step.b] : Bounded{0, 0};
      const double middle = alone(step.op, a.value, b.value);
      double error = each * std::abs(middle) + 1e-37;
      for (const double da : {-a.error, a.error}) {
        for (const double db : {-b.error, b.error}) {
          error = std::max(
              error, std::abs(alone(step.op, a.value + da, b.value + db) - middle) + each * std::abs(middle) + 1e-37);
        }
      }
      steps.push_back({middle, error});
    }
  }
  return steps.back();
}

}  // namespace

BOOST_AUTO_TEST_CASE(near_float64) {
  const std::vector<std::string> functions{"exp",  "expm1", "log",  "log1p", "tanh", "sigmoid", "erf",
                                           "sqrt", "rsqrt", "silu", "gelu",  "mish", "softplus"};
  constexpr std::size_t kCount = 40;
  Random random(13);
  int compared = 0;
  for (int i = 0; i < 400; ++i) {
    Pointwise expression;
    try {
      expression = parse_pointwise(random_text(random, 1 + i % 4, functions, {"max", "min", "swiglu"}));
    } catch (const Error&) {
      continue;
    }
    const std::vector<float> x = random_row(static_cast<std::uint64_t>(i), kCount, -4, 4);
    std::vector<std::vector<float>> rows;
    std::vector<PointwiseValues> inputs;
    for (std::size_t k = 0; k < expression.inputs().size(); ++k) rows.push_back(random_row(100 + k, kCount, -4, 4));
    for (std::size_t k = 0; k < rows.size(); ++k) inputs.push_back({rows[k].data(), false});
    for (const auto precision :
         {PointwisePrecision::reproducible16, PointwisePrecision::reproducible32, PointwisePrecision::fast}) {
      std::vector<float> got(kCount, kPoison);
      PointwiseProgram(expression, precision).run(kCount, x.data(), inputs, got.data());
      for (std::size_t j = 0; j < kCount; ++j) {
        std::vector<double> values;
        for (const auto& row : rows) values.push_back(row[j]);
        const Bounded expected = bounded(expression, x[j], values, relative_error(precision));
        if (!(expected.error < 1e-2 * std::abs(expected.value)) || std::abs(expected.value) > 1e30) continue;
        ++compared;
        BOOST_TEST(std::abs(got[j] - expected.value) <= expected.error, expression << " of " << x[j] << " is " << got[j]
                                                                                   << ", expected " << expected.value
                                                                                   << " +- " << expected.error);
      }
    }
  }
  BOOST_TEST(compared > 10000);
}

// In f32, in each precision, for every finite x.
BOOST_AUTO_TEST_CASE(built_in_functions_and_their_derivatives_are_finite) {
  std::vector<float> x{0.0F, 1e-45F, 1e-30F};
  for (double size = 1e-3; size < 3e38; size *= 1.7) x.push_back(static_cast<float>(size));
  x.push_back(std::numeric_limits<float>::max());
  for (std::size_t i = 0, half = x.size(); i < half; ++i) x.push_back(-x[i]);
  const float one = 1.0F;
  for (const PointwiseFunction& function : built_in_functions()) {
    if (function.name == "square" || function.name == "squared_relu") continue;  // these do overflow
    const Pointwise forward =
        parse_pointwise(std::string(function.name) + "(" + std::string(function.parameters) + ")");
    for (const Pointwise& expression : {forward, derivative(forward, "x")}) {
      for (const auto precision :
           {PointwisePrecision::reproducible16, PointwisePrecision::reproducible32, PointwisePrecision::fast}) {
        const std::vector<PointwiseValues> inputs(expression.inputs().size(), PointwiseValues{&one, true});
        std::vector<float> got(x.size(), NAN);
        PointwiseProgram(expression, precision).run(x.size(), x.data(), inputs, got.data());
        for (std::size_t i = 0; i < x.size(); ++i) {
          const double expected = evaluate(expression, x[i], std::vector<double>(inputs.size(), 1.0));
          BOOST_TEST(
              std::abs(got[i] - expected) <=
                  relative_error(precision) * (1 + std::abs(expected)) * (1 + std::min(std::abs(x[i]), 100.0F)),
              function.name << ": " << expression << " of " << x[i] << " is " << got[i] << ", expected " << expected);
        }
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(any_length_and_no_element_beyond_it) {
  const Pointwise expression = parse_pointwise("(x + a[row]) * gate - bias[col]");
  const PointwiseProgram program(expression, PointwisePrecision::reproducible32);
  for (const std::size_t count : {0U, 1U, 2U, 255U, 256U, 257U, 1000U}) {
    const std::vector<float> x = random_row(1, count, -2, 2);
    const std::vector<float> gate = random_row(2, count, -2, 2);
    const std::vector<float> bias = random_row(3, count, -2, 2);
    const float a = 0.75F;
    std::vector<float> out(count + 1, kPoison);
    const std::vector<PointwiseValues> inputs{{&a, true}, {gate.data(), false}, {bias.data(), false}};
    program.run(count, x.data(), inputs, out.data());
    for (std::size_t i = 0; i < count; ++i) {
      const float sum = x[i] + a;
      BOOST_TEST(out[i] == std::fma(sum, gate[i], -bias[i]), "element " << i << " of " << count);
    }
    BOOST_TEST(out[count] == kPoison);
  }
}

BOOST_AUTO_TEST_CASE(in_place) {
  const PointwiseProgram program(parse_pointwise("x * gate + x"), PointwisePrecision::reproducible32);
  const std::vector<float> x = random_row(1, 700, -2, 2);
  const std::vector<float> gate = random_row(2, 700, -2, 2);
  std::vector<float> expected(700, kPoison);
  const std::vector<PointwiseValues> inputs{{gate.data(), false}};
  program.run(700, x.data(), inputs, expected.data());
  std::vector<float> over_x = x;
  program.run(700, over_x.data(), inputs, over_x.data());
  BOOST_TEST(over_x == expected);
  std::vector<float> over_gate = gate;
  const std::vector<PointwiseValues> same{{over_gate.data(), false}};
  program.run(700, x.data(), same, over_gate.data());
  BOOST_TEST(over_gate == expected);
}

BOOST_AUTO_TEST_CASE(no_expression_and_no_x) {
  const std::vector<float> x{1, 2, 3};
  std::vector<float> out(3, kPoison);
  PointwiseProgram(Pointwise(), PointwisePrecision::fast).run(3, x.data(), {}, out.data());
  BOOST_TEST(out == x);
  PointwiseProgram(parse_pointwise("0.5"), PointwisePrecision::fast).run(3, nullptr, {}, out.data());
  BOOST_TEST(out == std::vector<float>(3, 0.5F));
}

BOOST_AUTO_TEST_CASE(refuses_a_wrong_number_of_inputs) {
  const PointwiseProgram program(parse_pointwise("x * gate"), PointwisePrecision::fast);
  float x = 1;
  BOOST_TEST(error_of([&] { program.run(1, &x, {}, &x); }, ErrorCode::invalid_argument) ==
             "x * gate: 0 inputs given, but the expression has 1 besides x");
}

BOOST_AUTO_TEST_SUITE_END()
