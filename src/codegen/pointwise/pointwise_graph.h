// Builds expressions: every step is simplified when it is made, and equal steps are made once.
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

// A product written as a power: x * x * x is {x, 3}; any other step is itself to the power of 1. Powers are expanded
// as base^(2n) = base^n * base^n and base^(2n+1) = base^(2n) * base, so that each exponent is one tree.
struct PointwisePower {
  std::uint32_t base = 0;
  std::uint32_t exponent = 1;
};
// The power of `self`, the product of steps a and b; `power_of_a` is that of a.
PointwisePower power_of_product(std::uint32_t self, std::uint32_t a, std::uint32_t b, PointwisePower power_of_a);

class PointwiseGraph {
 public:
  using Node = std::uint32_t;

  Node constant(double value);
  Node x();
  // If there is an input of this name already, it must be of the same kind.
  Node input(const PointwiseInput& input);
  Node make(PointwiseOp op, Node a, Node b = 0);
  Node power(Node base, std::uint32_t exponent);

  // The node of each step of the expression; x for no expression.
  std::vector<Node> add(const Pointwise& expression);

  const std::vector<PointwiseInput>& inputs() const { return inputs_; }
  PointwiseOp op(Node node) const { return entries_[node].op; }
  std::pair<Node, Node> operands(Node node) const { return {entries_[node].a, entries_[node].b}; }
  bool is_constant(Node node, float value) const;
  PointwisePower power_of(Node node) const { return entries_[node].power; }

  // The limit of pointwise.h that the expression under this node exceeds, for messages; empty if none.
  std::string excess(Node node) const;
  // The expression under a node within the limits. Steps are numbered by a walk from the result, left operand first, so
  // that two equal trees have equal lists, however they were made.
  Pointwise finish(Node result) const;

 private:
  struct Entry {
    PointwiseOp op;
    Node a, b;
    float value;
    PointwisePower power;
    std::uint32_t depth;  // depth of the tree below
    std::uint32_t size;   // nodes of the tree as print() writes it; saturates
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
