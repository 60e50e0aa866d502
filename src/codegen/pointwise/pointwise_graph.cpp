// Every rule below produces something that no rule applies to, and intern() is reached only where none applies. So
// making a finished expression's steps again, as parse(print(e)) does, changes nothing.
#include "ingot/codegen/pointwise/pointwise_graph.h"
#include <fmt/format.h>
#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <ostream>
#include <utility>
#include <vector>
#include "ingot/codegen/pointwise/pointwise.h"
#include "ingot/codegen/pointwise/pointwise_functions.h"
#include "ingot/codegen/types/spec_hash.h"
#include "ingot/runtime/util/error.h"

namespace ingot {
namespace {

using Op = PointwiseOp;
using Node = PointwiseGraph::Node;

constexpr std::uint32_t kManyNodes = 1U << 30;

}  // namespace

PointwisePower power_of_product(std::uint32_t self, std::uint32_t a, std::uint32_t b, PointwisePower power_of_a) {
  const auto [base, exponent] = power_of_a;
  if (a == b) return 2 * exponent <= kMaxPointwiseExponent ? PointwisePower{base, 2 * exponent} : PointwisePower{a, 2};
  if (base == b && exponent % 2 == 0 && exponent < kMaxPointwiseExponent) return {base, exponent + 1};
  return {self, 1};
}

Node PointwiseGraph::intern(Op op, Node a, Node b, float value) {
  const auto next = static_cast<Node>(entries_.size());
  const auto [known, is_new] = known_.try_emplace(Key(op, a, b, value), next);
  if (!is_new) return known->second;
  Entry entry{.op = op, .a = a, .b = b, .value = value, .power = {next, 1}, .depth = 0, .size = 1};
  for (int operand = 0; operand < arity(op); ++operand) {
    const Entry& below = entries_[operand == 0 ? a : b];
    entry.depth = std::max(entry.depth, below.depth + 1);
    entry.size = std::min(kManyNodes, entry.size + below.size);
  }
  if (op == Op::multiply) {
    entry.power = power_of_product(next, a, b, entries_[a].power);
    if (entry.power.exponent > 1) entry.size = entries_[entry.power.base].size + 1;
  }
  entries_.push_back(entry);
  return next;
}

Node PointwiseGraph::constant(double value) {
  const auto rounded = static_cast<float>(value);
  return intern(Op::constant, 0, 0, rounded == 0 ? 0.0F : rounded);
}

Node PointwiseGraph::x() { return intern(Op::x, 0, 0, 0); }

Node PointwiseGraph::input(const PointwiseInput& input) {
  const auto found = std::ranges::find(inputs_, input.name, &PointwiseInput::name);
  const auto index = static_cast<Node>(found - inputs_.begin());
  if (found == inputs_.end()) inputs_.push_back(input);
  return intern(Op::input, index, 0, 0);
}

bool PointwiseGraph::is_constant(Node node, float value) const {
  return is_constant(node) && entries_[node].value == value;
}

// A product or quotient of one constant and something else. (There is no -0, which x / 0 would need.)
bool PointwiseGraph::is_scaled(Node node) const {
  const Entry& entry = entries_[node];
  return (entry.op == Op::multiply || entry.op == Op::divide) && is_constant(entry.a) != is_constant(entry.b) &&
         !is_constant(entry.b, 0);
}

// Is there a minus sign in front that negated() takes away?
bool PointwiseGraph::is_negative(Node node) const {
  const Entry& entry = entries_[node];
  if (entry.op == Op::constant) return entry.value < 0;
  if (is_scaled(node)) return entries_[is_constant(entry.a) ? entry.a : entry.b].value < 0;
  return entry.op == Op::negate;
}

Node PointwiseGraph::negated(Node a) {
  const Entry entry = entries_[a];
  if (entry.op == Op::constant) return constant(-entry.value);
  if (entry.op == Op::negate) return entry.a;
  if (entry.op == Op::subtract) return make(Op::subtract, entry.b, entry.a);
  if (is_scaled(a)) {
    return is_constant(entry.a) ? make(entry.op, negated(entry.a), entry.b) : make(entry.op, entry.a, negated(entry.b));
  }
  return intern(Op::negate, a, 0, 0);
}

Node PointwiseGraph::sum(Node a, Node b) {
  if (is_constant(a, 0)) return b;
  if (is_constant(b, 0)) return a;
  if (is_negative(b)) return make(Op::subtract, a, negated(b));
  if (op(a) == Op::negate) return make(Op::subtract, b, entries_[a].a);
  return intern(Op::add, a, b, 0);
}

Node PointwiseGraph::difference(Node a, Node b) {
  if (is_constant(a, 0)) return negated(b);
  if (is_constant(b, 0)) return a;
  if (is_negative(b)) return make(Op::add, a, negated(b));
  return intern(Op::subtract, a, b, 0);
}

Node PointwiseGraph::product(Node a, Node b) {
  if (is_constant(a, 0) || is_constant(b, 0)) return constant(0);
  if (is_constant(a, 1)) return b;
  if (is_constant(b, 1)) return a;
  if (is_constant(a, -1)) return negated(b);
  if (is_constant(b, -1)) return negated(a);
  if (op(a) == Op::negate) return negated(make(Op::multiply, entries_[a].a, b));
  if (op(b) == Op::negate) return negated(make(Op::multiply, a, entries_[b].a));
  return intern(Op::multiply, a, b, 0);
}

Node PointwiseGraph::quotient(Node a, Node b) {
  if (is_constant(a, 0) && !is_constant(b, 0)) return a;
  if (is_constant(b, 1)) return a;
  if (is_constant(b, -1)) return negated(a);
  if (op(a) == Op::negate) return negated(make(Op::divide, entries_[a].a, b));
  if (op(b) == Op::negate) return negated(make(Op::divide, a, entries_[b].a));
  return intern(Op::divide, a, b, 0);
}

Node PointwiseGraph::make(Op op, Node a, Node b) {
  if (arity(op) == 1) b = 0;
  if (is_constant(a) && (arity(op) == 1 || is_constant(b))) {
    // If the result is not a finite number, the expression is kept and computes it at run time.
    const auto value = static_cast<float>(apply(op, entries_[a].value, entries_[b].value));
    if (std::isfinite(value)) return constant(value);
  }
  switch (op) {
    case Op::negate: return negated(a);
    case Op::add: return sum(a, b);
    case Op::subtract: return difference(a, b);
    case Op::multiply: return product(a, b);
    case Op::divide: return quotient(a, b);
    case Op::maximum:
    case Op::minimum: return a == b ? a : intern(op, a, b, 0);
    default: return intern(op, a, b, 0);
  }
}

Node PointwiseGraph::power(Node base, std::uint32_t exponent) {
  if (exponent == 0) return constant(1);
  if (exponent == 1) return base;
  if (exponent % 2 != 0) return make(Op::multiply, power(base, exponent - 1), base);
  const Node half = power(base, exponent / 2);
  return make(Op::multiply, half, half);
}

std::vector<Node> PointwiseGraph::add(const Pointwise& expression) {
  if (expression.empty()) return {x()};
  std::vector<Node> nodes;
  for (const PointwiseStep& step : expression.steps()) {
    switch (step.op) {
      case Op::constant: nodes.push_back(constant(step.value)); break;
      case Op::x: nodes.push_back(x()); break;
      case Op::input: nodes.push_back(input(expression.inputs()[step.a])); break;
      default: nodes.push_back(make(step.op, nodes[step.a], nodes[step.b])); break;
    }
  }
  return nodes;
}

std::string PointwiseGraph::excess(Node node) const {
  const Entry& entry = entries_[node];
  if (entry.depth > kMaxPointwiseDepth) {
    return fmt::format("is nested too deeply: more than {} operations within each other", kMaxPointwiseDepth);
  }
  if (entry.size > kMaxPointwiseNodes) {
    return fmt::format(
        "is too long: more than {} operations, names and numbers with the built-in functions written out",
        kMaxPointwiseNodes);
  }
  return {};
}

Pointwise PointwiseGraph::finish(Node result) const {
  Pointwise::Body body;
  std::vector<int> step_of(entries_.size(), -1);
  std::vector<int> input_of(inputs_.size(), -1);
  const auto number = [](int index) { return static_cast<std::uint16_t>(index); };
  const auto visit = [&](const auto& self, Node node) -> int {
    if (step_of[node] >= 0) return step_of[node];
    const Entry& entry = entries_[node];
    PointwiseStep step{.op = entry.op, .a = 0, .b = 0, .value = entry.value};
    if (arity(entry.op) > 0) step.a = number(self(self, entry.a));
    if (arity(entry.op) > 1) step.b = number(self(self, entry.b));
    if (entry.op == Op::input) {
      int& index = input_of[entry.a];
      if (index < 0) {
        index = static_cast<int>(body.inputs.size());
        body.inputs.push_back(inputs_[entry.a]);
      }
      step.a = number(index);
    }
    body.uses_x = body.uses_x || entry.op == Op::x;
    body.steps.push_back(step);
    return step_of[node] = static_cast<int>(body.steps.size()) - 1;
  };
  visit(visit, result);
  return Pointwise::from(std::move(body));
}

Pointwise Pointwise::from(Body body) {
  std::uint64_t hash = 0;
  for (const PointwiseStep& step : body.steps) {
    const std::uint64_t operands = std::uint64_t{step.a} << 48 | std::uint64_t{step.b} << 32;
    hash = mix(hash + static_cast<std::uint64_t>(step.op) + 1) ^ (operands | std::bit_cast<std::uint32_t>(step.value));
  }
  for (const PointwiseInput& input : body.inputs) {
    hash = mix(hash + static_cast<std::uint64_t>(input.kind) + 1) ^ std::hash<std::string>()(input.name);
  }
  body.hash = static_cast<std::size_t>(mix(hash));
  return Pointwise(std::make_shared<const Body>(std::move(body)));
}

std::span<const PointwiseInput> Pointwise::inputs() const {
  return empty() ? std::span<const PointwiseInput>() : body_->inputs;
}

bool Pointwise::uses_x() const { return empty() || body_->uses_x; }

std::span<const PointwiseStep> Pointwise::steps() const {
  return empty() ? std::span<const PointwiseStep>() : body_->steps;
}

std::size_t Pointwise::hash() const { return empty() ? 0 : body_->hash; }

bool Pointwise::same_body(const Pointwise& a, const Pointwise& b) {
  if (a.empty() || b.empty()) return false;  // not both: those are one pointer
  return a.body_->hash == b.body_->hash && a.body_->steps == b.body_->steps && a.body_->inputs == b.body_->inputs;
}

std::ostream& operator<<(std::ostream& stream, const Pointwise& expression) { return stream << print(expression); }

}  // namespace ingot
