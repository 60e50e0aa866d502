// Pointwise expressions: parsing and values, printing in canonical form, simplification, limits, and hostile texts.
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "codegen/pointwise_cases.h"
#include "ingot/codegen/pointwise/pointwise.h"
#include "ingot/runtime/util/error.h"
#include "support/expect_error.h"

BOOST_AUTO_TEST_SUITE(test_pointwise)

using namespace ingot;
using namespace ingot::test;

namespace {

std::string canonical(const std::string& text) { return print(parse_pointwise(text)); }

double value(const std::string& text, double x, const std::vector<double>& inputs = {}) {
  return evaluate(parse_pointwise(text), x, inputs);
}

std::string repeated(const std::string& text, std::size_t count) {
  std::string all;
  for (std::size_t i = 0; i < count; ++i) all += text;
  return all;
}

const std::vector<std::string> kOneArgument{"exp",  "expm1", "log",   "log1p", "tanh", "sigmoid",
                                            "erf",  "sqrt",  "rsqrt", "abs",   "sign", "step",
                                            "relu", "elu",   "silu",  "gelu",  "mish", "square"};
const std::vector<std::string> kTwoArguments{"max", "min", "leaky_relu", "swiglu", "reglu"};

// The definition of each built-in function, written differently from its text.
using Reference = std::function<double(double, double)>;
double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double relu(double x) { return x > 0 ? x : 0; }
double gelu(double x) { return x * 0.5 * std::erfc(-x / std::sqrt(2.0)); }
double hardsigmoid(double x) { return x <= -3 ? 0 : x >= 3 ? 1 : x / 6 + 0.5; }

Reference reference(std::string_view name) {
  if (name == "relu") return [](double x, double) { return relu(x); };
  if (name == "squared_relu") return [](double x, double) { return relu(x) * relu(x); };
  if (name == "leaky_relu") return [](double x, double slope) { return x > 0 ? x : slope * x; };
  if (name == "elu") return [](double x, double) { return x > 0 ? x : std::expm1(x); };
  if (name == "softplus") return [](double x, double) { return x > 30 ? x : std::log1p(std::exp(x)); };
  if (name == "gelu") return [](double x, double) { return gelu(x); };
  if (name == "gelu_tanh") {
    return [](double x, double) {
      return 0.5 * x * (1 + std::tanh(std::sqrt(2 / 3.14159265358979323846) * (x + 0.044715 * x * x * x)));
    };
  }
  if (name == "quick_gelu") return [](double x, double) { return x * sigmoid(1.702 * x); };
  if (name == "silu" || name == "swish") return [](double x, double) { return x * sigmoid(x); };
  if (name == "mish") return [](double x, double) { return x * std::tanh(std::log1p(std::exp(x))); };
  if (name == "hardsigmoid") return [](double x, double) { return hardsigmoid(x); };
  if (name == "hardswish") return [](double x, double) { return x * hardsigmoid(x); };
  if (name == "square") return [](double x, double) { return x * x; };
  if (name == "swiglu") return [](double x, double gate) { return x * sigmoid(x) * gate; };
  if (name == "geglu") return [](double x, double gate) { return gelu(x) * gate; };
  if (name == "reglu") return [](double x, double gate) { return relu(x) * gate; };
  return {};
}

std::string call_of(const PointwiseFunction& function) {
  return std::string(function.name) + "(" + std::string(function.parameters) + ")";
}

}  // namespace

BOOST_AUTO_TEST_CASE(values_of_the_grammar) {
  BOOST_TEST(value("1 + 2 * 3", 0) == 7);
  BOOST_TEST(value("7 - 2 - 1", 0) == 4);
  BOOST_TEST(value("16 / 4 / 2", 0) == 2);
  BOOST_TEST(value("(1 + 2) * x", 5) == 15);
  BOOST_TEST(value("-x^2", 3) == -9);
  BOOST_TEST(value("(-x)^2", 3) == 9);
  BOOST_TEST(value("2 * -x", 3) == -6);
  BOOST_TEST(value("x - -x", 3) == 6);
  BOOST_TEST(value("---x", 3) == -3);
  BOOST_TEST(value("x^0", 3) == 1);
  BOOST_TEST(value("x^13", 3) == 1594323);
  BOOST_TEST_CHECK(value("x^64", 1.5) == std::pow(1.5, 64), boost::test_tools::tolerance(1e-12));
  BOOST_TEST(value("max(x, 2) + min(x, 2)", 3) == 5);
  BOOST_TEST(value("sign(x) + step(x)", -3) == -1);
  BOOST_TEST(value("sign(x) + step(x)", 0) == 0);
  BOOST_TEST(value("sign(x) + step(x)", 3) == 2);
  BOOST_TEST(value("abs(x)", -3) == 3);
  BOOST_TEST(value("x * gate + bias[col] / mean[row]", 2, {3, 10, 5}) == 8);
  BOOST_TEST(value(" \tx\n*\r2 ", 3) == 6);
  BOOST_TEST(value(".5 + 1. + 2E+1 + 1e-0", 0) == 22.5);
  BOOST_TEST(value("0.1 + x", 0) == double{0.1F});  // a constant is an f32
}

BOOST_AUTO_TEST_CASE(primitive_functions_are_those_of_cmath) {
  for (const double x : {0.1, 0.5, 0.9, 1.5, 3.0, 20.0}) {
    BOOST_TEST(value("exp(x)", x) == std::exp(x));
    BOOST_TEST(value("expm1(x)", x) == std::expm1(x));
    BOOST_TEST(value("log(x)", x) == std::log(x));
    BOOST_TEST(value("log1p(x)", x) == std::log1p(x));
    BOOST_TEST(value("tanh(x)", x) == std::tanh(x));
    BOOST_TEST(value("erf(x)", x) == std::erf(x));
    BOOST_TEST(value("sqrt(x)", x) == std::sqrt(x));
    BOOST_TEST(value("rsqrt(x)", x) == 1 / std::sqrt(x));
    BOOST_TEST_CHECK(value("sigmoid(x)", x) == sigmoid(x), boost::test_tools::tolerance(1e-15));
    BOOST_TEST_CHECK(value("sigmoid(x)", -x) == sigmoid(-x), boost::test_tools::tolerance(1e-15));
  }
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const char* text : {"max(x, 1)", "max(1, x)", "min(x, 1)", "min(1, x)", "sign(x)", "step(x)", "abs(x)"}) {
    BOOST_TEST(std::isnan(value(text, nan)), text);
  }
}

BOOST_AUTO_TEST_CASE(built_in_functions_against_their_definitions) {
  BOOST_TEST(built_in_functions().size() == 17U);
  for (const PointwiseFunction& function : built_in_functions()) {
    const Reference expected = reference(function.name);
    BOOST_REQUIRE_MESSAGE(expected, function.name << " has no reference in this test");
    const Pointwise expression = parse_pointwise(call_of(function));
    for (int i = -600; i <= 600; ++i) {
      const double x = i / 40.0;
      const std::vector<double> inputs(expression.inputs().size(), 0.3);
      const double got = evaluate(expression, x, inputs);
      // The constants in the texts are f32.
      BOOST_TEST(std::abs(got - expected(x, 0.3)) <= 1e-7 * (1 + std::abs(x) + std::abs(got)),
                 function.name << " of " << x << " is " << got << ", expected " << expected(x, 0.3));
    }
  }
}

BOOST_AUTO_TEST_CASE(built_in_functions_and_their_derivatives_are_finite) {
  for (const PointwiseFunction& function : built_in_functions()) {
    const Pointwise expression = parse_pointwise(call_of(function));
    const Pointwise slope = derivative(expression, "x");
    for (const double size : {0.0, 1e-45, 1e-30, 1.0, 16.0, 90.0, 1e4, 1e10, 1e15, 1e19, 1e30, 3.4e38, 1e150}) {
      for (const double x : {size, -size}) {
        const std::vector<double> one(expression.inputs().size(), 1.0);
        BOOST_TEST(std::isfinite(evaluate(expression, x, one)), function.name << " of " << x);
        BOOST_TEST(std::isfinite(evaluate(slope, x, std::span(one).first(slope.inputs().size()))),
                   "the derivative of " << function.name << " at " << x);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(canonical_form) {
  BOOST_TEST(canonical("silu( x)*gate+bias [col]") == "x * sigmoid(x) * gate + bias[col]");
  BOOST_TEST(canonical("((x))") == "x");
  BOOST_TEST(canonical("a - (b - c)") == "a - (b - c)");
  BOOST_TEST(canonical("(a - b) - c") == "a - b - c");
  BOOST_TEST(canonical("a * (b * c)") == "a * (b * c)");
  BOOST_TEST(canonical("(a / b) / c * (x + 1)") == "a / b / c * (x + 1)");
  BOOST_TEST(canonical("-(a + b)") == "-(a + b)");
  BOOST_TEST(canonical("-(a * b)") == "-(a * b)");
  BOOST_TEST(canonical("-a * b") == "-(a * b)");
  BOOST_TEST(canonical("-x^2") == "-x^2");
  BOOST_TEST(canonical("(-x)^2") == "x^2");
  BOOST_TEST(canonical("x * x") == "x^2");
  BOOST_TEST(canonical("x * x * x") == "x^3");
  BOOST_TEST(canonical("(x^2)^3") == "x^4 * x^2");
  BOOST_TEST(canonical("(x^3)^2") == "x^6");
  BOOST_TEST(canonical("(x^64)^2") == "(x^64)^2");
  BOOST_TEST(canonical("(x + 1)^5") == "(x + 1)^5");
  BOOST_TEST(canonical("max(a, min(x,1))") == "max(a, min(x, 1))");
  BOOST_TEST(canonical("mean[ row ]*x") == "mean[row] * x");
  BOOST_TEST(canonical("sigmoid(-x)") == "sigmoid(-x)");
}

BOOST_AUTO_TEST_CASE(numbers_print_shortest) {
  BOOST_TEST(canonical("0.1") == "0.1");
  BOOST_TEST(canonical("1.0") == "1");
  BOOST_TEST(canonical("0.70710678118654752") == "0.70710677");
  BOOST_TEST(canonical("1e-3 * x") == "0.001 * x");
  BOOST_TEST(canonical("1e-20 * x") == "1e-20 * x");
  BOOST_TEST(canonical("16777217") == "16777216");
  BOOST_TEST(canonical("3.4028235e38") == "3.4028235e+38");
  BOOST_TEST(canonical("1e-45") == "1e-45");
  BOOST_TEST(canonical("-0") == "0");
}

BOOST_AUTO_TEST_CASE(simplification) {
  for (const char* text : {"x * 1", "1 * x", "x + 0", "0 + x", "x - 0", "x / 1", "--x", "-(0 - x)", "-1 * -x", "x^1",
                           "x * (3 - 2)", "x / -1 * -1", "max(x, x)", "min(x, x)", "x + 0 * gate", "x * gate^0"}) {
    BOOST_TEST(canonical(text) == "x", text);
  }
  BOOST_TEST(canonical("x * 0") == "0");
  BOOST_TEST(canonical("0 * x") == "0");
  BOOST_TEST(canonical("0 / x") == "0");
  BOOST_TEST(canonical("0 - x") == "-x");
  BOOST_TEST(canonical("x * -1") == "-x");
  BOOST_TEST(canonical("x + -a") == "x - a");
  BOOST_TEST(canonical("-a + x") == "x - a");
  BOOST_TEST(canonical("x - -a") == "x + a");
  BOOST_TEST(canonical("x + -2") == "x - 2");
  BOOST_TEST(canonical("x - -2") == "x + 2");
  BOOST_TEST(canonical("-2 + x") == "-2 + x");
  BOOST_TEST(canonical("x + -2 * a") == "x - 2 * a");
  BOOST_TEST(canonical("x - a / -2") == "x + a / 2");
  BOOST_TEST(canonical("-(x - a)") == "a - x");
  BOOST_TEST(canonical("-(2 * x)") == "-2 * x");
  BOOST_TEST(canonical("-x * -a") == "x * a");
  BOOST_TEST(canonical("-x / a") == "-(x / a)");
  BOOST_TEST(canonical("x / -2") == "x / -2");
  BOOST_TEST(canonical("-(x / 2)") == "x / -2");
}

BOOST_AUTO_TEST_CASE(constants_are_folded_where_the_result_is_a_number) {
  BOOST_TEST(canonical("1 / 3") == "0.33333334");
  BOOST_TEST(canonical("2^10 - 1") == "1023");
  BOOST_TEST(canonical("sqrt(2) * x") == "1.4142135 * x");
  BOOST_TEST(canonical("max(1, 2) + step(3) + sign(-2) + abs(-4)") == "6");
  for (const char* text : {"1 / 0", "0 / 0", "log(0)", "sqrt(-1)", "3e+38 * 3e+38 * 2", "-3e+38 - 3e+38", "-(x / 0)",
                           "x - 1e+30 * -1e+30", "-(1e+30 * 1e+30)", "(-1e+30)^2 + x"}) {
    const Pointwise expression = parse_pointwise(text);
    BOOST_TEST(print(expression).find("inf") == std::string::npos, text);
    BOOST_TEST((parse_pointwise(print(expression)) == expression), text << " came back as " << expression);
  }
  BOOST_TEST(canonical("1 / 0") == "1 / 0");
  BOOST_TEST(canonical("-(x / 0)") == "-(x / 0)");
  BOOST_TEST(canonical("1e30^2") == "1e+30^2");
}

BOOST_AUTO_TEST_CASE(inputs_in_order_of_appearance) {
  const Pointwise expression = parse_pointwise("-b + c[col] * x + d[row] * b");
  BOOST_TEST(print(expression) == "c[col] * x - b + d[row] * b");
  BOOST_REQUIRE(expression.inputs().size() == 3U);
  BOOST_TEST((expression.inputs()[0] == PointwiseInput{"c", PointwiseInput::Kind::column}));
  BOOST_TEST((expression.inputs()[1] == PointwiseInput{"b", PointwiseInput::Kind::matrix}));
  BOOST_TEST((expression.inputs()[2] == PointwiseInput{"d", PointwiseInput::Kind::row}));
  BOOST_TEST(expression.uses_x());
  BOOST_TEST(!parse_pointwise("a + 1").uses_x());
  BOOST_TEST(parse_pointwise("x + 0 * a").inputs().empty());  // simplified away
}

BOOST_AUTO_TEST_CASE(columns_of_f32) {
  const Pointwise expression = parse_pointwise("x * f[ col : f32 ] + b[col]");
  BOOST_TEST(print(expression) == "x * f[col:f32] + b[col]");
  BOOST_TEST((parse_pointwise(print(expression)) == expression));
  BOOST_TEST((expression.inputs()[0] == PointwiseInput{"f", PointwiseInput::Kind::column_f32}));
  BOOST_TEST((expression.inputs()[1] == PointwiseInput{"b", PointwiseInput::Kind::column}));
  BOOST_TEST((parse_pointwise("x * f[col]") != parse_pointwise("x * f[col:f32]")));
  BOOST_TEST(parse_pointwise("x * f[col]").hash() != parse_pointwise("x * f[col:f32]").hash());
  BOOST_TEST(value("x * f[col:f32] + b[col]", 2, {3, 10}) == 16);
  BOOST_TEST(print(backward(expression, "x")) == "grad * f[col:f32]");
}

BOOST_AUTO_TEST_CASE(no_expression) {
  const Pointwise none;
  BOOST_TEST(none.empty());
  BOOST_TEST(!none);
  BOOST_TEST((none == Pointwise()));
  BOOST_TEST(!(none == parse_pointwise("x")));
  BOOST_TEST(!(parse_pointwise("x") == none));
  BOOST_TEST(static_cast<bool>(parse_pointwise("x")));
  BOOST_TEST(print(none) == "");
  BOOST_TEST(none.inputs().empty());
  BOOST_TEST(none.steps().empty());
  BOOST_TEST(none.uses_x());
  BOOST_TEST(evaluate(none, 3) == 3);
}

BOOST_AUTO_TEST_CASE(equality_and_hash_are_of_the_expression_not_of_its_text) {
  const Pointwise a = parse_pointwise("silu(x) * gate");
  const Pointwise b = parse_pointwise("x*sigmoid(x)*(gate)");
  BOOST_TEST((a == b));
  BOOST_TEST(a.hash() == b.hash());
  std::ostringstream stream;
  stream << a;
  BOOST_TEST(stream.str() == "x * sigmoid(x) * gate");
  for (const char* text : {"silu(x) * grad", "silu(x) * gate[col]", "silu(x) * gate[row]", "gate * silu(x)", "silu(x)",
                           "silu(x) / gate", "silu(x) * gate * 2"}) {
    BOOST_TEST(!(a == parse_pointwise(text)), text);
    BOOST_TEST(a.hash() != parse_pointwise(text).hash(), text);
  }
}

BOOST_AUTO_TEST_CASE(what_is_the_same_is_computed_once) {
  BOOST_TEST(parse_pointwise("(x + 1) * (x + 1) + sigmoid(x + 1) * sigmoid(1 + x)").steps().size() == 9U);
  BOOST_TEST(parse_pointwise("x^64").steps().size() == 7U);
}

BOOST_AUTO_TEST_CASE(random_expressions_come_back_from_their_print) {
  Random random(7);
  std::set<std::size_t> hashes;
  std::set<std::string> prints;
  int long_ones = 0;
  for (int i = 0; i < 4000; ++i) {
    const std::string text = random_text(random, 1 + i % 5, kOneArgument, kTwoArguments);
    Pointwise expression;
    try {
      expression = parse_pointwise(text);
    } catch (const Error&) {
      ++long_ones;  // over a limit
      continue;
    }
    const std::string printed = print(expression);
    const Pointwise again = parse_pointwise(printed);
    BOOST_TEST((again == expression), text << "\n" << printed << "\n" << again);
    BOOST_TEST(again.hash() == expression.hash());
    BOOST_TEST(print(again) == printed);
    hashes.insert(expression.hash());
    prints.insert(printed);
  }
  BOOST_TEST(hashes.size() == prints.size());
  BOOST_TEST(prints.size() > 2000U);
  BOOST_TEST(long_ones < 200);
}

BOOST_AUTO_TEST_CASE(limits_hold_and_what_is_within_them_comes_back) {
  // 64 nested operations are accepted, 65 are not.
  const auto nested = [](std::size_t count) { return repeated("exp(", count) + "x" + repeated(")", count); };
  BOOST_TEST(canonical(nested(64)) == nested(64));
  check_contains(error_of([&] { parse_pointwise(nested(65)); }, ErrorCode::invalid_spec), {"nested too deeply"});
  BOOST_TEST(canonical("x" + repeated(" + a", 64)) == "x" + repeated(" + a", 64));
  check_contains(error_of([&] { parse_pointwise("x" + repeated(" + a", 65)); }, ErrorCode::invalid_spec),
                 {"more than 64 operations within each other"});
  check_contains(
      error_of([&] { parse_pointwise(repeated("(", 65) + "x" + repeated(")", 65)); }, ErrorCode::invalid_spec),
      {"more than 64 parentheses within each other"});
  BOOST_TEST(canonical(repeated("(", 64) + "x" + repeated(")", 64)) == "x");
  // Each silu doubles the expanded text.
  check_contains(
      error_of([&] { parse_pointwise(repeated("silu(", 12) + "x" + repeated(")", 12)); }, ErrorCode::invalid_spec),
      {"is too long: more than 512 operations, names and numbers"});
  // A power of a power is a long product, but a short text.
  const std::string tower = repeated("(", 9) + "x^64" + repeated(")^64", 9);
  BOOST_TEST((parse_pointwise(canonical(tower)) == parse_pointwise(tower)));
}

BOOST_AUTO_TEST_CASE(hostile_texts_are_refused_in_time) {
  for (const char* part : {"(", "-(", "exp(", "max(1,", "gelu_tanh(", "x^64*", "x+(", "(x)^", "x[", "silu(x)*", "1/"}) {
    const std::string text = repeated(part, 100000);
    error_of([&] { parse_pointwise(text); }, ErrorCode::invalid_spec);
    const std::string message = error_of([&] { parse_pointwise(text + "x"); }, ErrorCode::invalid_spec);
    BOOST_TEST(message.size() < 1000U, part);
  }
  BOOST_TEST(canonical(repeated("-", 100000) + "x") == "x");
  for (const std::string& text : {std::string(100000, 'a'), std::string(100000, '7'), std::string(100000, 'a') + "(1)",
                                  "x^" + std::string(100000, '7'), "b[" + std::string(100000, 'a') + "]",
                                  "x " + std::string(100000, '\xc3'), std::string(100000, '\0')}) {
    BOOST_TEST(error_of([&] { parse_pointwise(text); }, ErrorCode::invalid_spec).size() < 1000U);
  }
  // Random bytes give an expression or an Error.
  Random random(11);
  const std::string alphabet = "x1.e+-*/^()[], \tmaxcolrowsilu\x80\xff\n";
  for (int i = 0; i < 20000; ++i) {
    std::string text(static_cast<std::size_t>(below(random, 12)), ' ');
    for (char& c : text) c = alphabet[static_cast<std::size_t>(below(random, static_cast<int>(alphabet.size())))];
    try {
      const Pointwise expression = parse_pointwise(text);
      BOOST_TEST((parse_pointwise(print(expression)) == expression), text);
    } catch (const Error& error) {
      BOOST_TEST(std::string(error.what()).ends_with("^"));
    }
  }
}

BOOST_AUTO_TEST_CASE(evaluate_refuses_a_wrong_number_of_inputs) {
  BOOST_TEST(error_of([] { evaluate(parse_pointwise("x * gate"), 1.0); }, ErrorCode::invalid_argument) ==
             "x * gate: 0 inputs given, but the expression has 1 besides x");
}

BOOST_AUTO_TEST_SUITE_END()
