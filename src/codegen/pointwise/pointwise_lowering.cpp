#include "ingot/codegen/pointwise/pointwise_lowering.h"
#include <fmt/format.h>
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>
#include "ingot/codegen/pointwise/pointwise_functions.h"

namespace ingot {
namespace {

using Op = PointwiseOp;

class Lowering {
  using enum LoweredStep::Kind;

 public:
  explicit Lowering(std::span<const PointwiseStep> steps) : steps_(steps), uses_(steps.size()), lowered_(steps.size()) {
    for (const PointwiseStep& step : steps) {
      if (arity(step.op) > 0) ++uses_[step.a];
      if (arity(step.op) > 1) ++uses_[step.b];
    }
  }

  std::vector<LoweredStep> run() {
    for (std::size_t i = 0; i < steps_.size(); ++i) lowered_[i] = lower(steps_[i], i);
    return lowered_;
  }

 private:
  LoweredStep lower(const PointwiseStep& step, std::size_t i) {
    if (step.op == Op::sigmoid && nan_passes_by(i))
      return {.kind = sigmoid_of_number, .count = 1, .operands = {step.a}};
    if (step.op == Op::add && takes_product(step.b)) return with_product(step.b, step.a, false, false);
    if (step.op == Op::add && takes_product(step.a)) return with_product(step.a, step.b, false, false);
    if (step.op == Op::subtract && takes_product(step.b)) return with_product(step.b, step.a, true, false);
    if (step.op == Op::subtract && takes_product(step.a)) return with_product(step.a, step.b, false, true);
    if (step.op == Op::multiply && is_one_minus(step.b, step.a)) return slope_of_sigmoid(step.a, step.b);
    if (step.op == Op::multiply && is_one_minus(step.a, step.b)) return slope_of_sigmoid(step.b, step.a);
    return {.count = static_cast<std::uint8_t>(arity(step.op)), .operands = {step.a, step.b}};
  }

  // Is step i a product that nothing else uses? A step that uses it twice counts as two.
  bool takes_product(std::uint16_t i) const {
    return steps_[i].op == Op::multiply && uses_[i] == 1 && lowered_[i].kind == as_written;
  }
  LoweredStep with_product(std::uint16_t product, std::uint16_t addend, bool negates_product, bool negates_addend) {
    lowered_[product].kind = part_of_another;
    return {.kind = multiply_add,
            .negates_product = negates_product,
            .negates_addend = negates_addend,
            .count = 3,
            .operands = {steps_[product].a, steps_[product].b, addend}};
  }

  // Is step i 1 - s, for a sigmoid s, and used once?
  bool is_one_minus(std::uint16_t i, std::uint16_t s) const {
    const PointwiseStep& step = steps_[i];
    return steps_[s].op == Op::sigmoid && step.op == Op::subtract && step.b == s && uses_[i] == 1 &&
           steps_[step.a].op == Op::constant && steps_[step.a].value == 1;
  }
  // s (1 - s) = s - s s. A sigmoid s is between 0 and 1, so that neither side becomes Inf; the right one rounds once.
  LoweredStep slope_of_sigmoid(std::uint16_t s, std::uint16_t one_minus) {
    lowered_[one_minus].kind = part_of_another;
    return {.kind = multiply_add, .negates_product = true, .count = 3, .operands = {s, s, s}};
  }

  // Is the result NaN wherever the argument of this sigmoid is, by steps that take no sigmoid? Every operation passes a
  // NaN on.
  bool nan_passes_by(std::size_t sigmoid) const {
    std::vector<bool> is_nan(steps_.size());
    is_nan[source_of_nan(steps_[sigmoid].a)] = true;
    for (std::size_t i = 0; i < steps_.size(); ++i) {
      const PointwiseStep& step = steps_[i];
      if (arity(step.op) == 0 || step.op == Op::sigmoid) continue;
      is_nan[i] = is_nan[i] || is_nan[step.a] || (arity(step.op) > 1 && is_nan[step.b]);
    }
    return is_nan.back();
  }
  // The step that must be NaN where step i is: products and sums with constants make no new NaN.
  std::uint16_t source_of_nan(std::uint16_t i) const {
    const PointwiseStep& step = steps_[i];
    if (step.op == Op::negate || step.op == Op::abs) return source_of_nan(step.a);
    if (step.op != Op::multiply && step.op != Op::add && step.op != Op::subtract) return i;
    if (steps_[step.a].op == Op::constant) return source_of_nan(step.b);
    return steps_[step.b].op == Op::constant ? source_of_nan(step.a) : i;
  }

  std::span<const PointwiseStep> steps_;
  std::vector<int> uses_;  // of each step, as an operand
  std::vector<LoweredStep> lowered_;
};

}  // namespace

std::vector<LoweredStep> lower(const Pointwise& expression) { return Lowering(expression.steps()).run(); }

namespace {

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

// The parameter that an input of the expression is.
std::string parameter_of(const PointwiseInput& input, std::span<const PointwiseInput* const> inputs) {
  const auto found = std::ranges::find_if(inputs, [&](const PointwiseInput* each) { return *each == input; });
  return fmt::format("a{}", found - inputs.begin());
}

// "float x, float a0, float": one that the expression does not read has no name.
std::string parameter_list(const Pointwise& expression, const PointwiseParameters& parameters) {
  const auto read = expression.inputs();
  std::string list = expression.uses_x() ? "float x" : "float";
  for (const PointwiseInput* const input : parameters.inputs) {
    list += ", float";
    if (std::ranges::find(read, *input) != read.end()) list += " " + parameter_of(*input, parameters.inputs);
  }
  return list;
}

}  // namespace

std::string render(const Pointwise& expression, std::string_view functor_name, PointwisePrecision precision) {
  std::vector<const PointwiseInput*> inputs;
  for (const PointwiseInput& input : expression.inputs()) inputs.push_back(&input);
  return render(expression, functor_name, precision, {.x = expression.uses_x(), .inputs = inputs});
}

std::string render(const Pointwise& expression, std::string_view functor_name, PointwisePrecision precision,
                   const PointwiseParameters& parameters) {
  std::string kinds;
  for (const PointwiseInput* const input : parameters.inputs) {
    kinds += fmt::format("{}InputKind::{}", kinds.empty() ? "" : ", ", kind_name(input->kind));
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
      values.push_back(parameter_of(expression.inputs()[step.a], parameters.inputs));
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
      functor_name, parameters.inputs.size(), parameters.x, kinds,
      is_long(expression) ? "__attribute__((noinline)) " : "", parameter_list(expression, parameters), body, last);
}

}  // namespace ingot
