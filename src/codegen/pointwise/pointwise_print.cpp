// Prints an expression in its one canonical form, with no more parentheses than it needs.
#include <fmt/format.h>

#include <array>
#include <charconv>
#include <string>
#include <vector>

#include "ingot/codegen/pointwise/pointwise.h"
#include "ingot/codegen/pointwise/pointwise_functions.h"
#include "ingot/codegen/pointwise/pointwise_graph.h"

namespace ingot {
namespace {

using Op = PointwiseOp;

// How tightly an operator binds; operands that bind less tightly get parentheses.
enum Precedence : int { kSum = 1, kProduct, kSign, kPower, kAtom };

struct Text {
  std::string text;
  Precedence precedence = kAtom;
};

// The shortest text that reads back as the same f32.
std::string number(float value) {
  std::array<char, 32> digits;
  const auto [end, error] = std::to_chars(digits.data(), digits.data() + digits.size(), value);
  return {digits.data(), end};
}

std::string within(const Text& operand, Precedence least) {
  return operand.precedence >= least ? operand.text : fmt::format("({})", operand.text);
}

// The right operand must bind more tightly than the left one: a - (b - c).
Text infix(const Text& a, const char* symbol, const Text& b, Precedence precedence) {
  return {within(a, precedence) + symbol + within(b, static_cast<Precedence>(precedence + 1)), precedence};
}

Text leaf(const PointwiseStep& step, std::span<const PointwiseInput> inputs) {
  if (step.op == Op::x) return {"x"};
  if (step.op == Op::constant) return {number(step.value), step.value < 0 ? kSign : kAtom};
  const PointwiseInput& input = inputs[step.a];
  switch (input.kind) {
    case PointwiseInput::Kind::matrix: return {input.name};
    case PointwiseInput::Kind::column: return {input.name + "[col]"};
    case PointwiseInput::Kind::row: return {input.name + "[row]"};
    case PointwiseInput::Kind::column_f32: return {input.name + "[col:f32]"};
  }
  return {input.name};
}

Text operation(Op op, const Text& a, const Text& b) {
  switch (op) {
    case Op::negate: return {fmt::format("-{}", within(a, kSign)), kSign};
    case Op::add: return infix(a, " + ", b, kSum);
    case Op::subtract: return infix(a, " - ", b, kSum);
    case Op::multiply: return infix(a, " * ", b, kProduct);
    case Op::divide: return infix(a, " / ", b, kProduct);
    default: break;
  }
  std::string call = std::string(function_name(op)) + "(" + a.text;
  if (arity(op) == 2) call += ", " + b.text;
  return {call + ")"};
}

}  // namespace

std::string print(const Pointwise& expression) {
  std::vector<Text> texts;
  std::vector<PointwisePower> powers;
  for (const PointwiseStep& step : expression.steps()) {
    const auto self = static_cast<std::uint32_t>(texts.size());
    PointwisePower power{self, 1};
    if (step.op == Op::multiply) power = power_of_product(self, step.a, step.b, powers[step.a]);
    powers.push_back(power);
    if (arity(step.op) == 0) {
      texts.push_back(leaf(step, expression.inputs()));
    } else if (power.exponent > 1) {
      texts.push_back({within(texts[power.base], kAtom) + "^" + std::to_string(power.exponent), kPower});
    } else {
      texts.push_back(operation(step.op, texts[step.a], texts[step.b]));
    }
  }
  return texts.empty() ? std::string() : texts.back().text;
}

std::string print_word(const Pointwise& expression) {
  std::string text = print(expression);
  std::erase(text, ' ');
  return text;
}

}  // namespace ingot
