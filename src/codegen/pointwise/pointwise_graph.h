// Builds expressions: every step is simplified when it is made, and made once.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "ingot/codegen/pointwise/pointwise.h"

namespace ingot {

// A product as the power that it is: x * x * x is {x, 3}; any other step is itself to the power of 1. Powers are
// multiplied out as base^(2n) = base^n * base^n and base^(2n+1) = base^(2n) * base, so that each exponent is one tree.
struct PointwisePower {
  std::uint32_t base = 0;
  std::uint32_t exponent = 1;
};
// Of the product `self` of steps a and b, the first of which is `power_of_a`.
PointwisePower power_of_product(std::uint32_t self, std::uint32_t a, std::uint32_t b, PointwisePower power_of_a);

class PointwiseGraph {
 public:
  using Node = std::uint32_t;

  Node constant(double value);
  Node x();
  // An input of this name that is there already must be of the same kind.
  Node input(const PointwiseInput& input);
  Node make(PointwiseOp op, Node a, Node b = 0);
  Node power(Node base, std::uint32_t exponent);

  // The node of each step of the expression. That of no expression is x.
  std::vector<Node> add(const Pointwise& expression);

  const std::vector<PointwiseInput>& inputs() const { return inputs_; }
  PointwiseOp op(Node node) const { return entries_[node].op; }
  std::pair<Node, Node> operands(Node node) const { return {entries_[node].a, entries_[node].b}; }
  bool is_constant(Node node, float value) const;
  PointwisePower power_of(Node node) const { return entries_[node].power; }

  // Empty, or which limit of pointwise.h the expression under this node exceeds.
  std::string excess(Node node) const;
  // Of a node within the limits. Steps are numbered by a walk from the result, left operand first, so that two equal
  // trees have equal lists, however they were made.
  Pointwise finish(Node result) const;

 private:
  struct Entry {
    PointwiseOp op;
    Node a, b;
    float value;
    PointwisePower power;
    std::uint32_t depth;  // of the tree below
    std::uint32_t size;   // nodes of the tree as print() writes it; stays at its largest value
  };
  using Key = std::tuple<PointwiseOp, Node, Node, float>;

  Node intern(PointwiseOp op, Node a, Node b, float value);
  bool is_constant(Node node) const { return entries_[node].op == PointwiseOp::constant; }
  bool is_negative(Node node) const;
  bool is_scaled(Node node) const;
  Node negated(Node a);
  Node sum(Node a, Node b);
  Node difference(Node a, Node b);
  Node product(Node a, Node b);
  Node quotient(Node a, Node b);

  std::vector<Entry> entries_;
  std::map<Key, Node> known_;
  std::vector<PointwiseInput> inputs_;
};

}  // namespace ingot
