#include "ingot/codegen/pointwise/pointwise_lowering.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

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

}  // namespace ingot
