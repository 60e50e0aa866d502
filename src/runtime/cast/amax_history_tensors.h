// The tensors of amax_history. Backend (backend.h) has the call.
#pragma once

#include "ingot/runtime/tensor.h"

namespace ingot {

// The n slots of delayed scaling, or views of a part of them. All tensors are f32.
struct AmaxHistoryTensors {
  Tensor amax;     // [n], read and written
  Tensor history;  // [n, length], read and written; any row stride, length >= 1 unless n is 0
  Tensor scale;    // [n], read and written
  Tensor limits;   // [n], read: FP8_MAX of each slot's dtype (fp8_max())
  Tensor pow2;     // [n], read: not 0 where the scale is rounded down to a power of two
  // [n], read, or missing: scales of earlier steps. One that is positive, finite and not 1, which stands for none yet,
  // becomes the slot's scale, whatever the maxima are.
  Tensor known{};
};

}  // namespace ingot
