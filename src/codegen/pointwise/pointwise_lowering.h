// How kernels and the CPU compute the steps of an expression, in fewer instructions, and the text of those kernels:
//
// - A product that nothing uses but one sum or difference becomes part of it: a fused multiply-add, which rounds once.
//   Of two such products it is the second.
// - s * (1 - s) of a sigmoid s is s - s * s, likewise.
// - A sigmoid need not return NaN where the result is NaN without it.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>
#include "ingot/codegen/pointwise/pointwise.h"

namespace ingot {

struct LoweredStep {
  enum class Kind : std::uint8_t {
    as_written,         // the step's own operation
    part_of_another,    // nothing: no later step needs it by itself
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

// Writes the struct that templates/pointwise/pointwise.cuh describes, in namespace ingot; the unit that contains it
// includes that header. It has the steps of PointwiseProgram, each as a temporary, which leaves the compiler nothing to
// decide but the schedule. None of the user's text gets in: inputs are named a0, a1 ..., and numbers are written in
// hexadecimal. `functor_name` is an identifier.
std::string render(const Pointwise& expression, std::string_view functor_name, PointwisePrecision precision);

// What the functor of an expression takes: x and inputs that a kernel loads for several expressions, among them all
// that this one reads.
struct PointwiseParameters {
  bool x = true;
  std::span<const PointwiseInput* const> inputs{};
};
std::string render(const Pointwise& expression, std::string_view functor_name, PointwisePrecision precision,
                   const PointwiseParameters& parameters);

}  // namespace ingot
