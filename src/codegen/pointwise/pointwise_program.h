// Runs an expression on the CPU over many elements, in f32, with the same operations in the same order as the CUDA code
// that pointwise_lowering.h writes: with a reproducible precision it gives the GPU's bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "ingot/codegen/pointwise/pointwise.h"
#include "ingot/codegen/pointwise/pointwise_lowering.h"

namespace ingot {

// The values of one input for consecutive elements of a row of the matrix.
struct PointwiseValues {
  const float* values = nullptr;
  bool same = false;  // one value for all of them, as for an input [row]
};

class PointwiseProgram {
 public:
  PointwiseProgram(Pointwise expression, PointwisePrecision precision);

  const Pointwise& expression() const { return expression_; }

  // Computes out[i] from x[i] and element i of each of inputs(), for i < count. `out` may be `x` or one of the inputs,
  // but may not overlap them otherwise. x may be null where the expression does not use it. Throws
  // Error{invalid_argument} where the number of inputs differs.
  void run(std::size_t count, const float* x, std::span<const PointwiseValues> inputs, float* out) const;

 private:
  template <class Math>
  void compute(std::size_t count, const float* const* values, float* const* targets) const;

  Pointwise expression_;
  PointwisePrecision precision_;
  std::vector<LoweredStep> lowered_;
  std::vector<std::uint16_t> slot_of_;  // for each step, the block of the scratch memory that holds it
  std::uint16_t slots_ = 0;
};

}  // namespace ingot
