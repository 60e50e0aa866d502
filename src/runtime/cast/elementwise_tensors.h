// The tensors of elementwise. Backend (backend.h) has the call.
#pragma once

#include <array>

#include "ingot/codegen/pointwise/pointwise.h"
#include "ingot/runtime/tensor.h"

namespace ingot {

// input[rows, cols] and output[rows, cols] of spec.in; input and inputs are those of a cast's expression (CastTensors).
// The output may be `input` or one of the expression's matrices, with the same address and row stride; otherwise it
// must not overlap them.
struct ElementwiseTensors {
  Tensor input;
  std::array<Tensor, kMaxPointwiseInputs> inputs{};
  Tensor output;
};

}  // namespace ingot
