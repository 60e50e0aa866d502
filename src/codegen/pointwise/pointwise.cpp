#include "ingot/codegen/pointwise/pointwise.h"

#include <bit>
#include <functional>
#include <ostream>
#include <utility>
#include <vector>

#include "ingot/codegen/types/spec_hash.h"
#include "ingot/runtime/error.h"

namespace ingot {

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
