// How kernels and the CPU compute the steps of an expression: a product that only one sum or difference uses becomes
// part of it, as a fused multiply-add, and a sigmoid need not return NaN where the result is NaN without it. Both take
// fewer instructions; a fused multiply-add rounds once instead of twice.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "ingot/codegen/pointwise/pointwise.h"

namespace ingot {

struct LoweredStep {
  enum class Kind : std::uint8_t {
    as_written,         // the step's own operation
    part_of_another,    // nothing: a later step computes it
    multiply_add,       // +-(a * b) +- c
    sigmoid_of_number,  // sigmoid(a), which may be any number where a is NaN
  };
  Kind kind = Kind::as_written;
  bool negates_product = false;
  bool negates_addend = false;
  std::uint8_t count = 0;                   // of operands
  std::array<std::uint16_t, 3> operands{};  // earlier steps: a, b, c

  std::uint16_t a() const { return operands[0]; }
  std::uint16_t b() const { return operands[1]; }
  std::uint16_t c() const { return operands[2]; }
  bool operator==(const LoweredStep&) const = default;
};

// One for each of expression.steps().
std::vector<LoweredStep> lower(const Pointwise& expression);

}  // namespace ingot
