// Works through blocks of elements step by step: each step is one loop that the compiler sees whole, and a block's
// intermediate values stay in the L1 cache.
#include "ingot/codegen/pointwise/pointwise_program.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "ingot/runtime/util/count_of.h"
#include "ingot/runtime/util/error.h"

#include "pointwise/math.cuh"

namespace ingot {
namespace {

using Op = PointwiseOp;

constexpr std::size_t kBlock = 256;

template <class Function>
void each(std::size_t count, float* out, const float* a, Function function) {
  for (std::size_t i = 0; i < count; ++i) out[i] = function(a[i]);
}

template <class Function>
void each(std::size_t count, float* out, const float* a, const float* b, Function function) {
  for (std::size_t i = 0; i < count; ++i) out[i] = function(a[i], b[i]);
}

// The same calls as in pointwise_lowering.cpp.
template <class M>
void compute_step(Op op, std::size_t count, float* out, const float* a, const float* b) {
  switch (op) {
    case Op::constant:
    case Op::x:
    case Op::input: return;
    case Op::negate: return each(count, out, a, [](float u) { return -u; });
    case Op::exp: return each(count, out, a, [](float u) { return math::exp<M>(u); });
    case Op::expm1: return each(count, out, a, [](float u) { return math::expm1<M>(u); });
    case Op::log: return each(count, out, a, [](float u) { return math::log<M>(u); });
    case Op::log1p: return each(count, out, a, [](float u) { return math::log1p<M>(u); });
    case Op::tanh: return each(count, out, a, [](float u) { return math::tanh<M>(u); });
    case Op::sigmoid: return each(count, out, a, [](float u) { return math::sigmoid<M>(u); });
    case Op::erf: return each(count, out, a, [](float u) { return math::erf<M>(u); });
    case Op::sqrt: return each(count, out, a, [](float u) { return math::sqrt<M>(u); });
    case Op::rsqrt: return each(count, out, a, [](float u) { return math::rsqrt<M>(u); });
    case Op::abs: return each(count, out, a, [](float u) { return math::absolute(u); });
    case Op::sign: return each(count, out, a, [](float u) { return math::sign(u); });
    case Op::step: return each(count, out, a, [](float u) { return math::step(u); });
    case Op::add: return each(count, out, a, b, [](float u, float v) { return u + v; });
    case Op::subtract: return each(count, out, a, b, [](float u, float v) { return u - v; });
    case Op::multiply: return each(count, out, a, b, [](float u, float v) { return u * v; });
    case Op::divide: return each(count, out, a, b, [](float u, float v) { return math::divide<M>(u, v); });
    case Op::maximum: return each(count, out, a, b, [](float u, float v) { return math::maximum(u, v); });
    case Op::minimum: return each(count, out, a, b, [](float u, float v) { return math::minimum(u, v); });
  }
}

void multiply_add(const LoweredStep& step, std::size_t count, float* out, const float* a, const float* b,
                  const float* c) {
  const float of_product = step.negates_product ? -1.0F : 1.0F;
  const float of_addend = step.negates_addend ? -1.0F : 1.0F;
  for (std::size_t i = 0; i < count; ++i) out[i] = fused_multiply_add(of_product * a[i], b[i], of_addend * c[i]);
}

}  // namespace

// A slot is free again after the last step that reads it; slots of leaves that are the same for all elements
// (constants, inputs [row]) are filled once and kept.
PointwiseProgram::PointwiseProgram(Pointwise expression, PointwisePrecision precision)
    : expression_(std::move(expression)),
      precision_(precision),
      lowered_(lower(expression_)),
      slot_of_(lowered_.size()) {
  const auto steps = expression_.steps();
  const auto operands_of = [&](std::size_t i) { return std::span(lowered_[i].operands).first(lowered_[i].count); };
  std::vector<std::size_t> last_use(steps.size());
  for (std::size_t i = 0; i < steps.size(); ++i) {
    for (const std::uint16_t operand : operands_of(i)) last_use[operand] = i;
  }
  std::vector<std::uint16_t> free;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    if (lowered_[i].kind == LoweredStep::Kind::part_of_another) continue;
    if (free.empty() || arity(steps[i].op) == 0) {
      slot_of_[i] = slots_++;
    } else {
      slot_of_[i] = free.back();
      free.pop_back();
    }
    for (const std::uint16_t operand : operands_of(i)) {
      if (arity(steps[operand].op) == 0 || last_use[operand] != i) continue;
      free.push_back(slot_of_[operand]);
      last_use[operand] = 0;  // an operand may be used twice here
    }
  }
}

template <class Math>
void PointwiseProgram::compute(std::size_t count, const float* const* values, float* const* targets) const {
  const auto steps = expression_.steps();
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const LoweredStep& step = lowered_[i];
    const float* const a = values[step.a()];
    const float* const b = values[step.b()];
    switch (step.kind) {
      case LoweredStep::Kind::part_of_another: break;
      case LoweredStep::Kind::as_written: compute_step<Math>(steps[i].op, count, targets[i], a, b); break;
      case LoweredStep::Kind::multiply_add: multiply_add(step, count, targets[i], a, b, values[step.c()]); break;
      case LoweredStep::Kind::sigmoid_of_number:
        each(count, targets[i], a, [](float u) { return math::sigmoid_of_number<Math>(u); });
        break;
    }
  }
}

void PointwiseProgram::run(std::size_t count, const float* x, std::span<const PointwiseValues> inputs,
                           float* out) const {
  if (inputs.size() != expression_.inputs().size()) {
    throw Error(ErrorCode::invalid_argument, print(expression_),
                fmt::format("{} given, but the expression has {} besides x", count_of(inputs.size(), "input"),
                            expression_.inputs().size()));
  }
  if (expression_.empty()) {
    if (out != x) std::copy_n(x, count, out);
    return;
  }
  if (count == 0) return;
  const auto steps = expression_.steps();
  const std::size_t block = std::min(kBlock, count);
  std::vector<float> scratch(slots_ * block);
  std::vector<float*> targets(steps.size());       // where each step's values go
  std::vector<const float*> values(steps.size());  // where they are read
  for (std::size_t i = 0; i < steps.size(); ++i) {
    targets[i] = scratch.data() + slot_of_[i] * block;
    values[i] = targets[i];
    if (steps[i].op == Op::constant) std::fill_n(targets[i], block, steps[i].value);
    if (steps[i].op == Op::input && inputs[steps[i].a].same) {
      std::fill_n(targets[i], block, *inputs[steps[i].a].values);
    }
  }
  for (std::size_t done = 0; done < count; done += block) {
    const std::size_t length = std::min(block, count - done);
    for (std::size_t i = 0; i < steps.size(); ++i) {
      if (steps[i].op == Op::x) values[i] = x + done;
      if (steps[i].op == Op::input && !inputs[steps[i].a].same) values[i] = inputs[steps[i].a].values + done;
    }
    switch (precision_) {
      case PointwisePrecision::reproducible16:
        compute<math::Reproducible16>(length, values.data(), targets.data());
        break;
      case PointwisePrecision::reproducible32:
        compute<math::Reproducible32>(length, values.data(), targets.data());
        break;
      case PointwisePrecision::fast: compute<math::Fast>(length, values.data(), targets.data()); break;
    }
    std::copy_n(values.back(), length, out + done);
  }
}

}  // namespace ingot
