// The tensors of MX quantization and of rounding to a small float format. Backend (backend.h) has the calls.
#pragma once

#include "ingot/runtime/tensor.h"

namespace ingot {

// input[rows, cols] of spec.in; codes[rows, cols] of spec.out, packed rows where that is of less than a byte; scales:
// e8m0fnu[rows, ceil(cols / 32)], contiguous rows of any stride.
struct MxQuantizeTensors {
  Tensor input;
  Tensor codes;
  Tensor scales;
};

// input[rows, cols] and output[rows, cols] of spec.in; the output may be the input itself, with the same row stride.
struct FloatQuantizeTensors {
  Tensor input;
  Tensor output;
};

}  // namespace ingot
