// Derivatives of pointwise expressions, against central differences in float64.
#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "codegen/pointwise_cases.h"
#include "ingot/codegen/pointwise/pointwise.h"
#include "ingot/runtime/util/error.h"
#include "support/expect_error.h"

BOOST_AUTO_TEST_SUITE(test_pointwise_derivative)

using namespace ingot;
using namespace ingot::test;

namespace {

std::string slope(const std::string& text, const std::string& by = "x") {
  return print(derivative(parse_pointwise(text), by));
}

// Returns a value for each name, so that an expression and its derivative, which may read fewer inputs, get the same
// ones.
struct Point {
  double x, gate, residual, bias, mean;
  double& of(std::string_view name) {
    return name == "x" ? x : name == "gate" ? gate : name == "residual" ? residual : name == "mean" ? mean : bias;
  }
};

Point random_point(Random& random) {
  const auto number = [&] { return between(random, -2, 2); };
  return {number(), number(), number(), number(), number()};
}

double at(const Pointwise& expression, Point point) {
  std::vector<double> inputs;
  for (const PointwiseInput& input : expression.inputs()) inputs.push_back(point.of(input.name));
  return evaluate(expression, point.x, inputs);
}

struct Difference {
  double slope, error;
};

// Richardson's central difference of fourth order, and the difference between two step sizes as its error; none where
// the function is not smooth enough.
std::optional<Difference> difference(const Pointwise& expression, Point point, std::string_view by) {
  const double middle = point.of(by);
  const auto moved = [&](double by_how_much) {
    point.of(by) = middle + by_how_much;
    return at(expression, point);
  };
  const auto central = [&](double h) {
    return (8 * (moved(h) - moved(-h)) - (moved(2 * h) - moved(-2 * h))) / (12 * h);
  };
  const double coarse = central(2e-3);
  const double fine = central(1e-3);
  const double finest = (moved(1e-4) - moved(-1e-4)) / 2e-4;  // notices a kink that larger steps jump over
  const double error = std::abs(coarse - fine) + std::abs(finest - fine) + 1e-9 * (std::abs(fine) + std::abs(moved(0)));
  if (!std::isfinite(error) || error > 1e-4 * (1 + std::abs(fine))) return std::nullopt;
  return Difference{fine, error};
}

// Returns how many points could be compared.
int compare(const Pointwise& expression, std::string_view by, Random& random, int points) {
  const Pointwise slope = derivative(expression, by);
  BOOST_TEST((parse_pointwise(print(slope)) == slope), slope);
  int compared = 0;
  for (int i = 0; i < points; ++i) {
    const Point point = random_point(random);
    const auto expected = difference(expression, point, by);
    if (!expected) continue;
    ++compared;
    const double got = at(slope, point);
    BOOST_TEST(std::abs(got - expected->slope) <= 2 * expected->error + 1e-6 * (1 + std::abs(got)),
               "d/d" << by << " " << expression << "\n  = " << slope << "\nat x = " << point.x
                     << ", gate = " << point.gate << " is " << got << ", expected " << expected->slope);
  }
  return compared;
}

const std::vector<std::string> kSmoothOneArgument{"exp",  "expm1", "log",      "log1p", "tanh",   "sigmoid",
                                                  "erf",  "sqrt",  "rsqrt",    "silu",  "gelu",   "gelu_tanh",
                                                  "mish", "elu",   "softplus", "abs",   "square", "hardswish"};
const std::vector<std::string> kTwoArguments{"max", "min", "leaky_relu", "swiglu", "geglu"};

}  // namespace

BOOST_AUTO_TEST_CASE(every_rule) {
  BOOST_TEST(slope("x") == "1");
  BOOST_TEST(slope("5 * gate") == "0");
  BOOST_TEST(slope("x + gate", "gate") == "1");
  BOOST_TEST(slope("x * gate + bias[col]", "bias") == "1");
  BOOST_TEST(slope("x * gate", "gate") == "x");
  BOOST_TEST(slope("x * gate - x") == "gate - 1");
  BOOST_TEST(slope("-x") == "-1");
  BOOST_TEST(slope("x^5") == "5 * x^4");
  BOOST_TEST(slope("x / gate") == "1 / gate");
  BOOST_TEST(slope("gate / x") == "-(gate / x / x)");
  BOOST_TEST(slope("exp(2 * x)") == "2 * exp(2 * x)");
  BOOST_TEST(slope("expm1(x)") == "exp(x)");
  BOOST_TEST(slope("log(x)") == "1 / x");
  BOOST_TEST(slope("log1p(x)") == "1 / (1 + x)");
  BOOST_TEST(slope("tanh(x)") == "1 - tanh(x)^2");
  BOOST_TEST(slope("sigmoid(x)") == "sigmoid(x) * (1 - sigmoid(x))");
  BOOST_TEST(slope("erf(x)") == "1.1283792 * exp(-x^2)");
  BOOST_TEST(slope("sqrt(x)") == "0.5 * rsqrt(x)");
  BOOST_TEST(slope("rsqrt(x)") == "-0.5 * rsqrt(x)^3");
  BOOST_TEST(slope("abs(x)") == "sign(x)");
  BOOST_TEST(slope("sign(x) + step(x)") == "0");
  BOOST_TEST(slope("max(x, gate)") == "step(x - gate)");
  BOOST_TEST(slope("max(x, gate)", "gate") == "1 - step(x - gate)");
  BOOST_TEST(slope("min(x, gate)") == "1 - step(x - gate)");
  BOOST_TEST(slope("silu(x)") == "sigmoid(x) + x * (sigmoid(x) * (1 - sigmoid(x)))");
  BOOST_TEST(slope("x * sigmoid(1.702 * x)") ==
             "sigmoid(1.702 * x) + x * (1.702 * (sigmoid(1.702 * x) * (1 - sigmoid(1.702 * x))))");
}

BOOST_AUTO_TEST_CASE(at_kinks) {
  const auto at_zero = [](const std::string& text) { return evaluate(derivative(parse_pointwise(text), "x"), 0.0); };
  BOOST_TEST(at_zero("relu(x) + 0.5") == 0);
  BOOST_TEST(at_zero("abs(x)") == 0);
  BOOST_TEST(at_zero("min(x, 0)") == 1);
  BOOST_TEST(at_zero("leaky_relu(x, 0.25)") == 0.25);
  // Smooth at 0, although its parts are not.
  BOOST_TEST(at_zero("elu(x)") == 1);
  BOOST_TEST(at_zero("softplus(x)") == 0.5);
  BOOST_TEST_CHECK(at_zero("mish(x)") == std::tanh(std::log(2.0)), boost::test_tools::tolerance(1e-12));
  BOOST_TEST(at_zero("max(x, 0) + min(x, 0)") == 1);
}

BOOST_AUTO_TEST_CASE(of_no_expression) {
  BOOST_TEST(print(derivative(Pointwise(), "x")) == "1");
  BOOST_TEST(print(backward(Pointwise(), "x")) == "grad");
}

BOOST_AUTO_TEST_CASE(of_every_built_in_function) {
  Random random(3);
  for (const PointwiseFunction& function : built_in_functions()) {
    // Its parameters are x, and for the second one gate.
    const bool two = function.parameters.find(',') != std::string_view::npos;
    const Pointwise expression = parse_pointwise(std::string(function.name) + (two ? "(x, gate)" : "(x)"));
    BOOST_TEST(compare(expression, "x", random, 200) > 150, function.name);
    if (two) BOOST_TEST(compare(expression, "gate", random, 200) > 150, function.name);
  }
  // Wider than +-2.
  for (const char* text : {"silu(6 * x)", "gelu(3 * x)", "gelu_tanh(3 * x)", "mish(6 * x)", "softplus(6 * x)",
                           "hardswish(4 * x)", "gelu_tanh(16 * x)", "x * sigmoid(1.702 * x)"}) {
    BOOST_TEST(compare(parse_pointwise(text), "x", random, 200) > 150, text);
  }
}

BOOST_AUTO_TEST_CASE(of_random_expressions) {
  Random random(5);
  int expressions = 0;
  int compared = 0;
  for (int i = 0; i < 1500; ++i) {
    const std::string text = random_text(random, 1 + i % 4, kSmoothOneArgument, kTwoArguments);
    for (const char* by : {"x", "gate", "bias"}) {
      try {
        const Pointwise expression = parse_pointwise(text);
        // The value is finite by way of an infinity (1 / (1 / 0)), but the derivative's rules give inf / inf.
        if (print(expression).find("/ 0") != std::string::npos) continue;
        const auto inputs = expression.inputs();
        if (std::string_view(by) != "x" && std::ranges::find(inputs, by, &PointwiseInput::name) == inputs.end())
          continue;
        compared += compare(expression, by, random, 10);
        ++expressions;
      } catch (const Error& error) {
        BOOST_TEST(std::string(error.what()).find("is too long") != std::string::npos, error.what());
      }
    }
  }
  BOOST_TEST(expressions > 1500);
  BOOST_TEST(compared > 6000);
}

BOOST_AUTO_TEST_CASE(backward_is_the_gradient_times_the_derivative) {
  const Pointwise swiglu = parse_pointwise("silu(x) * gate");
  BOOST_TEST(print(backward(swiglu, "gate")) == "grad * (x * sigmoid(x))");
  BOOST_TEST(print(backward(swiglu, "x")) == "grad * ((sigmoid(x) + x * (sigmoid(x) * (1 - sigmoid(x)))) * gate)");
  BOOST_TEST(print(backward(swiglu, "x", "grad_output")) ==
             "grad_output * ((sigmoid(x) + x * (sigmoid(x) * (1 - sigmoid(x)))) * gate)");
  BOOST_TEST(print(backward(parse_pointwise("x + bias[col]"), "x")) == "grad");
  BOOST_TEST(backward(swiglu, "x").inputs()[0].name == "grad");
}

BOOST_AUTO_TEST_CASE(refusals) {
  const auto error = [](const auto& call) { return error_of(call, ErrorCode::invalid_spec); };
  BOOST_TEST(error([] { derivative(parse_pointwise("x * gate"), "gat"); }) ==
             "x * gate: there is no derivative by \"gat\", which is no input; expected one of x, gate");
  BOOST_TEST(error([] { derivative(Pointwise(), "gate"); }) ==
             "x: there is no derivative by \"gate\", which is no input; expected one of x");
  BOOST_TEST(error([] { backward(parse_pointwise("x * gate"), "y"); }) ==
             "x * gate: there is no derivative by \"y\", which is no input; expected one of x, gate");
  for (const char* grad : {"gate", "x", "a + b", "a[col]", "1"}) {
    BOOST_TEST(error([&] { backward(parse_pointwise("x * gate"), "x", grad); }) ==
               "x * gate: \"" + std::string(grad) +
                   "\" cannot be the gradient that flows in; expected the name of a matrix that is no input of the "
                   "expression itself");
  }
  BOOST_TEST(error([] { backward(parse_pointwise("x * a * b * c * d"), "x"); }) ==
             "x * a * b * c * d: its derivative by x has 5 inputs besides x; expected at most 4");

  std::string nested = "x";
  for (int i = 0; i < 64; ++i) nested = "exp(" + nested + ")";
  check_contains(error([&] { derivative(parse_pointwise(nested), "x"); }),
                 {"its derivative by x is nested too deeply: more than 64 operations within each other"});
  std::string product = "(x + 1)";
  for (int i = 2; i < 24; ++i) product += " * (x + " + std::to_string(i) + ")";
  check_contains(error([&] { derivative(parse_pointwise(product), "x"); }),
                 {"its derivative by x is too long: more than 512 operations"});
}

BOOST_AUTO_TEST_SUITE_END()
