#include "ingot/codegen/pointwise/pointwise_render.h"

#include <fmt/format.h>

#include <string>
#include <vector>

#include "ingot/codegen/pointwise/pointwise_functions.h"
#include "ingot/codegen/pointwise/pointwise_lowering.h"

namespace ingot {
namespace {

using Op = PointwiseOp;

const char* precision_type(PointwisePrecision precision) {
  switch (precision) {
    case PointwisePrecision::reproducible16: return "math::Reproducible16";
    case PointwisePrecision::reproducible32: return "math::Reproducible32";
    case PointwisePrecision::fast: return "math::Fast";
  }
  return "no precision";
}

const char* kind_name(PointwiseInput::Kind kind) {
  switch (kind) {
    case PointwiseInput::Kind::matrix: return "matrix";
    case PointwiseInput::Kind::column: return "column";
    case PointwiseInput::Kind::row: return "row";
    case PointwiseInput::Kind::column_f32: return "column_f32";
  }
  return "no kind";
}

// Exact: 0.1 is 0x1.99999ap-4F.
std::string float_literal(float value) { return fmt::format("{:a}F", value); }

// Negates a name or a literal.
std::string negated(const std::string& value) { return value.starts_with('-') ? value.substr(1) : "-" + value; }

std::string computation(Op op, const LoweredStep& step, const std::vector<std::string>& values, const char* precision) {
  const std::string& a = values[step.a()];
  const std::string& b = values[step.b()];
  if (step.kind == LoweredStep::Kind::multiply_add) {
    return fmt::format("fused_multiply_add({}, {}, {})", step.negates_product ? negated(a) : a, b,
                       step.negates_addend ? negated(values[step.c()]) : values[step.c()]);
  }
  if (step.kind == LoweredStep::Kind::sigmoid_of_number) {
    return fmt::format("math::sigmoid_of_number<{}>({})", precision, a);
  }
  switch (op) {
    case Op::negate: return "-" + a;
    case Op::add: return fmt::format("{} + {}", a, b);
    case Op::subtract: return fmt::format("{} - {}", a, b);
    case Op::multiply: return fmt::format("{} * {}", a, b);
    case Op::divide: return fmt::format("math::divide<{}>({}, {})", precision, a, b);
    case Op::maximum: return fmt::format("math::maximum({}, {})", a, b);
    case Op::minimum: return fmt::format("math::minimum({}, {})", a, b);
    case Op::abs: return fmt::format("math::absolute({})", a);
    case Op::sign: return fmt::format("math::sign({})", a);
    case Op::step: return fmt::format("math::step({})", a);
    default: return fmt::format("math::{}<{}>({})", function_name(op), precision, a);
  }
}

// A kernel has a copy of the expression for each element that a thread works on at a time, often for several ways
// through the kernel: 128 in a GEMM's epilogue. A long expression is therefore a function that is called; inlined, ten
// times tanh took NVRTC 7 s there, called 0.7 s, and one of 820 characters more than a minute. The built-in functions
// and their derivatives are shorter.
bool is_long(const Pointwise& expression) {
  constexpr int kFunction = 20;  // instructions, about
  constexpr int kMostInlined = 240;
  int instructions = 0;
  for (const PointwiseStep& step : expression.steps()) {
    switch (step.op) {
      case Op::constant:
      case Op::x:
      case Op::input: break;
      case Op::negate:
      case Op::abs:
      case Op::sign:
      case Op::step:
      case Op::add:
      case Op::subtract:
      case Op::multiply:
      case Op::maximum:
      case Op::minimum: ++instructions; break;
      default: instructions += kFunction;
    }
  }
  return instructions > kMostInlined;
}

}  // namespace

std::string render(const Pointwise& expression, std::string_view functor_name, PointwisePrecision precision) {
  std::string parameters = expression.uses_x() ? "float x" : "float";
  std::string kinds;
  for (std::size_t i = 0; i < expression.inputs().size(); ++i) {
    parameters += fmt::format(", float a{}", i);
    kinds += fmt::format("{}InputKind::{}", i == 0 ? "" : ", ", kind_name(expression.inputs()[i].kind));
  }
  std::string body;
  std::vector<std::string> values;
  std::string last = "x";
  int temporaries = 0;
  const auto lowered = lower(expression);
  for (std::size_t i = 0; i < lowered.size(); ++i) {
    const PointwiseStep& step = expression.steps()[i];
    if (step.op == Op::constant) {
      values.push_back(float_literal(step.value));
    } else if (step.op == Op::x) {
      values.emplace_back("x");
    } else if (step.op == Op::input) {
      values.push_back(fmt::format("a{}", step.a));
    } else if (lowered[i].kind == LoweredStep::Kind::part_of_another) {
      values.emplace_back();
    } else {
      const std::string computed = computation(step.op, lowered[i], values, precision_type(precision));
      values.push_back(fmt::format("t{}", temporaries++));
      body += fmt::format("    const float {} = {};\n", values.back(), computed);
    }
    last = values.back();
  }
  return fmt::format(
      "namespace ingot {{\n\nstruct {} {{\n"
      "  static constexpr u32 kInputs = {};\n"
      "  static constexpr bool kUsesX = {};\n"
      "  static constexpr InputKind kKinds[kMaxInputs] = {{{}}};\n"
      "  {}static INGOT_HOST_DEVICE float apply({}) {{\n{}    return {};\n  }}\n}};\n\n}}  // namespace ingot\n",
      functor_name, expression.inputs().size(), expression.uses_x(), kinds,
      is_long(expression) ? "__attribute__((noinline)) " : "", parameters, body, last);
}

}  // namespace ingot
