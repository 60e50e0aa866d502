// Forward differentiation, step by step: each step's derivative follows from those of its operands. The rules reuse
// what the function itself computes, its own value included, so that a derivative is finite where the function is, and
// a kernel that computes both has most of it already.
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ingot/codegen/pointwise/pointwise.h"
#include "ingot/codegen/pointwise/pointwise_graph.h"
#include "ingot/runtime/util/error.h"

namespace ingot {
namespace {

using Op = PointwiseOp;
using Node = PointwiseGraph::Node;
using Kind = PointwiseInput::Kind;

constexpr double kTwoOverRootPi = 1.1283791670955126;

class Derivation {
 public:
  Derivation(PointwiseGraph& graph, const Pointwise& expression, std::string_view by)
      : graph_(graph), expression_(expression), by_(by), nodes_(graph.add(expression)) {}

  Node derive() {
    if (expression_.empty()) return graph_.constant(by_ == "x" ? 1 : 0);
    for (const PointwiseStep& step : expression_.steps()) slopes_.push_back(slope(step));
    return slopes_.back();
  }

 private:
  Node add(Node a, Node b) { return graph_.make(Op::add, a, b); }
  Node subtract(Node a, Node b) { return graph_.make(Op::subtract, a, b); }
  // Puts the constant first and folds two constants into one: the rules introduce many.
  Node multiply(Node a, Node b) {
    if (graph_.op(b) == Op::constant) std::swap(a, b);
    if (graph_.op(a) == Op::constant && graph_.op(b) == Op::multiply) {
      const auto [first, second] = graph_.operands(b);
      if (graph_.op(first) == Op::constant) return multiply(graph_.make(Op::multiply, a, first), second);
    }
    return graph_.make(Op::multiply, a, b);
  }
  Node divide(Node a, Node b) { return graph_.make(Op::divide, a, b); }
  Node constant(double value) { return graph_.constant(value); }
  bool is_zero(Node node) const { return graph_.is_constant(node, 0); }

  Node slope(const PointwiseStep& step) {
    if (step.op == Op::x) return constant(by_ == "x" ? 1 : 0);
    if (step.op == Op::input) return constant(expression_.inputs()[step.a].name == by_ ? 1 : 0);
    if (step.op == Op::constant) return constant(0);
    const Node self = nodes_[slopes_.size()];
    const Node a = nodes_[step.a];
    const Node slope_a = slopes_[step.a];
    if (arity(step.op) == 1) return is_zero(slope_a) ? slope_a : chain(step.op, self, a, slope_a);
    const Node slope_b = slopes_[step.b];
    if (is_zero(slope_a) && is_zero(slope_b)) return slope_a;
    return step.op == Op::multiply ? of_product(step, self)
                                   : binary(step.op, self, a, nodes_[step.b], slope_a, slope_b);
  }

  // f(a)' = f'(a) * a'
  Node chain(Op op, Node self, Node a, Node slope_a) {
    switch (op) {
      case Op::negate: return graph_.make(Op::negate, slope_a);
      case Op::log: return divide(slope_a, a);
      case Op::log1p: return divide(slope_a, add(constant(1), a));
      default: return multiply(outer(op, self, a), slope_a);
    }
  }

  // f'(a) of the other functions.
  Node outer(Op op, Node self, Node a) {
    switch (op) {
      case Op::exp: return self;
      case Op::expm1: return graph_.make(Op::exp, a);
      case Op::tanh: return subtract(constant(1), graph_.power(self, 2));
      case Op::sigmoid: return multiply(self, subtract(constant(1), self));
      case Op::erf:
        return multiply(constant(kTwoOverRootPi), graph_.make(Op::exp, graph_.make(Op::negate, graph_.power(a, 2))));
      case Op::sqrt: return multiply(constant(0.5), graph_.make(Op::rsqrt, a));
      case Op::rsqrt: return multiply(constant(-0.5), graph_.power(self, 3));
      case Op::abs: return graph_.make(Op::sign, a);
      default: return constant(0);  // sign and step
    }
  }

  Node of_product(const PointwiseStep& step, Node self) {
    const auto [base, exponent] = graph_.power_of(self);
    if (exponent > 1) {
      const Node outer = multiply(constant(exponent), graph_.power(base, exponent - 1));
      return multiply(outer, slope_of(base));
    }
    return add(multiply(slopes_[step.a], nodes_[step.b]), multiply(nodes_[step.a], slopes_[step.b]));
  }

  // The derivative of a node that comes before this step.
  Node slope_of(Node node) const {
    return slopes_[static_cast<std::size_t>(std::ranges::find(nodes_, node) - nodes_.begin())];
  }

  Node binary(Op op, Node self, Node a, Node b, Node slope_a, Node slope_b) {
    switch (op) {
      case Op::add: return add(slope_a, slope_b);
      case Op::subtract: return subtract(slope_a, slope_b);
      case Op::divide: return divide(subtract(slope_a, multiply(self, slope_b)), b);  // (a / b)', without b * b
      case Op::maximum: return choose(a, b, slope_a, slope_b);
      default: return choose(a, b, slope_b, slope_a);  // minimum
    }
  }

  // `above` where a > b, else `below`: at a = b, max takes the slope of b and min that of a, which together are those
  // of a + b.
  Node choose(Node a, Node b, Node above, Node below) {
    if (above == below) return above;
    const Node is_above = graph_.make(Op::step, subtract(a, b));
    return add(multiply(is_above, above), multiply(subtract(constant(1), is_above), below));
  }

  PointwiseGraph& graph_;
  const Pointwise& expression_;
  std::string_view by_;
  std::vector<Node> nodes_;   // of each step
  std::vector<Node> slopes_;  // its derivative
};

[[noreturn]] void refuse(const Pointwise& expression, const std::string& message) {
  throw Error(ErrorCode::invalid_spec, expression.empty() ? "x" : print(expression), message);
}

void require_input(const Pointwise& expression, std::string_view by) {
  std::string known = "x";
  bool found = by == "x";
  for (const PointwiseInput& input : expression.inputs()) {
    known += ", " + input.name;
    found = found || input.name == by;
  }
  if (!found) {
    refuse(expression,
           fmt::format("there is no derivative by \"{}\", which is no input; expected one of {}", by, known));
  }
}

Pointwise finish(const PointwiseGraph& graph, Node result, const Pointwise& expression, std::string_view by) {
  if (const std::string excess = graph.excess(result); !excess.empty()) {
    refuse(expression, fmt::format("its derivative by {} {}", by, excess));
  }
  Pointwise made = graph.finish(result);
  if (made.inputs().size() > kMaxPointwiseInputs) {
    refuse(expression, fmt::format("its derivative by {} has {} inputs besides x; expected at most {}", by,
                                   made.inputs().size(), kMaxPointwiseInputs));
  }
  return made;
}

}  // namespace

Pointwise derivative(const Pointwise& expression, std::string_view by) {
  require_input(expression, by);
  PointwiseGraph graph;
  const Node slope = Derivation(graph, expression, by).derive();
  return finish(graph, slope, expression, by);
}

Pointwise backward(const Pointwise& expression, std::string_view by, std::string_view grad) {
  require_input(expression, by);
  const Pointwise incoming = parse_pointwise(grad);
  if (incoming.steps().size() != 1 || incoming.inputs().size() != 1 || incoming.inputs()[0].kind != Kind::matrix ||
      std::ranges::find(expression.inputs(), grad, &PointwiseInput::name) != expression.inputs().end()) {
    refuse(expression, fmt::format("\"{}\" cannot be the gradient that flows in; expected the name of a matrix that is "
                                   "no input of the expression itself",
                                   grad));
  }
  PointwiseGraph graph;
  const Node grad_node = graph.add(incoming).back();
  const Node slope = Derivation(graph, expression, by).derive();
  return finish(graph, graph.make(Op::multiply, grad_node, slope), expression, by);
}

}  // namespace ingot
