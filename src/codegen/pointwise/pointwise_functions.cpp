#include "ingot/codegen/pointwise/pointwise_functions.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "ingot/runtime/util/count_of.h"
#include "ingot/runtime/util/error.h"

namespace ingot {
namespace {

using Op = PointwiseOp;

constexpr std::array kPrimitives{
    PrimitiveFunction{"exp", Op::exp},     PrimitiveFunction{"expm1", Op::expm1},
    PrimitiveFunction{"log", Op::log},     PrimitiveFunction{"log1p", Op::log1p},
    PrimitiveFunction{"tanh", Op::tanh},   PrimitiveFunction{"sigmoid", Op::sigmoid},
    PrimitiveFunction{"erf", Op::erf},     PrimitiveFunction{"sqrt", Op::sqrt},
    PrimitiveFunction{"rsqrt", Op::rsqrt}, PrimitiveFunction{"abs", Op::abs},
    PrimitiveFunction{"sign", Op::sign},   PrimitiveFunction{"step", Op::step},
    PrimitiveFunction{"max", Op::maximum}, PrimitiveFunction{"min", Op::minimum},
};

// Written so that neither the function nor its derivative overflows needlessly, or is NaN, for any finite x:
// - softplus takes exp of -|x| only, written min(x, -x): with abs(x) its derivative at 0 would be that of max(x, 0)
//   alone, 0 instead of 1/2.
// - gelu_tanh writes 0.5 * (1 + tanh(z)) as sigmoid(2 * z). Its polynomial clamps x to +-16, where the sigmoid has long
//   been 0 or 1: the cube of a large x would overflow and make the derivative 0 * inf.
constexpr std::array kBuiltIns{
    PointwiseFunction{"relu", "x", "max(x, 0)"},
    PointwiseFunction{"squared_relu", "x", "relu(x)^2"},
    PointwiseFunction{"leaky_relu", "x, slope", "max(x, 0) + slope * min(x, 0)"},
    PointwiseFunction{"elu", "x", "max(x, 0) + expm1(min(x, 0))"},
    PointwiseFunction{"softplus", "x", "max(x, 0) + log1p(exp(min(x, -x)))"},
    PointwiseFunction{"gelu", "x", "0.5 * x * (1 + erf(0.70710678118654752 * x))"},
    PointwiseFunction{"gelu_tanh", "x",
                      "x * sigmoid(max(min(x, 16), -16) * "
                      "(1.5957691216057308 + 0.071354816272600636 * max(min(x, 16), -16)^2))"},
    PointwiseFunction{"quick_gelu", "x", "x * sigmoid(1.702 * x)"},
    PointwiseFunction{"silu", "x", "x * sigmoid(x)"},
    PointwiseFunction{"swish", "x", "silu(x)"},
    PointwiseFunction{"mish", "x", "x * tanh(softplus(x))"},
    PointwiseFunction{"hardsigmoid", "x", "min(max(x + 3, 0), 6) * (1 / 6)"},
    PointwiseFunction{"hardswish", "x", "x * hardsigmoid(x)"},
    PointwiseFunction{"square", "x", "x^2"},
    PointwiseFunction{"swiglu", "x, gate", "silu(x) * gate"},
    PointwiseFunction{"geglu", "x, gate", "gelu(x) * gate"},
    PointwiseFunction{"reglu", "x, gate", "relu(x) * gate"},
};

template <class Functions>
auto find(const Functions& functions, std::string_view name) -> decltype(functions.data()) {
  const auto found = std::ranges::find_if(functions, [&](const auto& function) { return function.name == name; });
  return found == functions.end() ? nullptr : &*found;
}

bool either_nan(double a, double b) { return std::isnan(a) || std::isnan(b); }

}  // namespace

std::span<const PrimitiveFunction> primitive_functions() { return kPrimitives; }
std::span<const PointwiseFunction> built_in_functions() { return kBuiltIns; }

std::string_view function_name(PointwiseOp op) {
  const auto found = std::ranges::find(kPrimitives, op, &PrimitiveFunction::op);
  return found == kPrimitives.end() ? std::string_view() : found->name;
}

const PrimitiveFunction* find_primitive(std::string_view name) { return find(kPrimitives, name); }
const PointwiseFunction* find_built_in(std::string_view name) { return find(kBuiltIns, name); }

std::vector<std::string_view> parameter_names(const PointwiseFunction& function) {
  constexpr std::string_view kSeparator = ", ";
  std::vector<std::string_view> names;
  std::string_view rest = function.parameters;
  for (auto comma = rest.find(kSeparator); comma != std::string_view::npos; comma = rest.find(kSeparator)) {
    names.push_back(rest.substr(0, comma));
    rest.remove_prefix(comma + kSeparator.size());
  }
  names.push_back(rest);
  return names;
}

std::string all_function_names() {
  std::string names;
  const auto add = [&](std::string_view name) { names.append(names.empty() ? "" : ", ").append(name); };
  for (const PrimitiveFunction& function : kPrimitives) add(function.name);
  for (const PointwiseFunction& function : kBuiltIns) add(function.name);
  return names;
}

double apply(PointwiseOp op, double a, double b) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  switch (op) {
    case Op::constant:
    case Op::x:
    case Op::input: return a;
    case Op::negate: return -a;
    case Op::exp: return std::exp(a);
    case Op::expm1: return std::expm1(a);
    case Op::log: return std::log(a);
    case Op::log1p: return std::log1p(a);
    case Op::tanh: return std::tanh(a);
    case Op::sigmoid: return a < 0 ? std::exp(a) / (1 + std::exp(a)) : 1 / (1 + std::exp(-a));
    case Op::erf: return std::erf(a);
    case Op::sqrt: return std::sqrt(a);
    case Op::rsqrt: return 1 / std::sqrt(a);
    case Op::abs: return std::abs(a);
    case Op::sign: return std::isnan(a) ? kNan : static_cast<double>(a > 0) - static_cast<double>(a < 0);
    case Op::step: return std::isnan(a) ? kNan : static_cast<double>(a > 0);
    case Op::add: return a + b;
    case Op::subtract: return a - b;
    case Op::multiply: return a * b;
    case Op::divide: return a / b;
    case Op::maximum: return either_nan(a, b) ? kNan : std::max(a, b);
    case Op::minimum: return either_nan(a, b) ? kNan : std::min(a, b);
  }
  return kNan;
}

double evaluate(const Pointwise& expression, double x, std::span<const double> inputs) {
  if (inputs.size() != expression.inputs().size()) {
    throw Error(ErrorCode::invalid_argument, print(expression),
                fmt::format("{} given, but the expression has {} besides x", count_of(inputs.size(), "input"),
                            expression.inputs().size()));
  }
  if (expression.empty()) return x;
  std::vector<double> values;
  values.reserve(expression.steps().size());
  for (const PointwiseStep& step : expression.steps()) {
    switch (step.op) {
      case PointwiseOp::constant: values.push_back(step.value); break;
      case PointwiseOp::x: values.push_back(x); break;
      case PointwiseOp::input: values.push_back(inputs[step.a]); break;
      default: values.push_back(apply(step.op, values[step.a], values[step.b])); break;
    }
  }
  return values.back();
}

}  // namespace ingot
