// The tensors of amax. Backend (backend.h) has the call.
#pragma once

#include "ingot/runtime/tensor.h"

namespace ingot {

// input[rows, cols] of spec.in; amax: f32[scale_count].
struct AmaxTensors {
  Tensor input;
  Tensor amax;
};

}  // namespace ingot
