// An expression made ready to be computed on the CPU for many elements, in f32, with the operations of the CUDA code
// that pointwise_render.h writes, in their order: with a reproducible precision the bits are the GPU's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "ingot/codegen/pointwise/pointwise.h"

namespace ingot {

// The values of one input for consecutive elements of a row of the matrix.
struct PointwiseValues {
  const float* values = nullptr;
  bool same = false;  // one value for all of them, as of an input [row]
};

class PointwiseProgram {
 public:
  PointwiseProgram(Pointwise expression, PointwisePrecision precision);

  const Pointwise& expression() const { return expression_; }

  // out[i] of x[i] and element i of each of inputs(), for i < count. `out` may be `x` or one of the inputs, but may not
  // overlap them otherwise. x may be null where the expression does not use it.
  // Throws Error{invalid_argument} where the number of inputs differs.
  void run(std::size_t count, const float* x, std::span<const PointwiseValues> inputs, float* out) const;

 private:
  template <class Math>
  void compute(std::size_t count, const float* const* values, float* const* targets) const;

  Pointwise expression_;
  PointwisePrecision precision_;
  std::vector<std::uint16_t> slot_of_;  // of each step: which block of the scratch memory holds it
  std::uint16_t slots_ = 0;
};

}  // namespace ingot
