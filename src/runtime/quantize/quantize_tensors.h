// The tensors of MX quantization and of rounding to a small float format. Backend (backend.h) has the calls.
#pragma once

#include "ingot/runtime/core/tensor.h"

namespace ingot {

// Rows may have any stride.
struct MxQuantizeTensors {
  Tensor input;   // [rows, cols] of spec.in
  Tensor codes;   // [rows, cols] of spec.out, without gaps within a row if codes are of less than a byte
  Tensor scales;  // e8m0fnu[rows, ceil(cols / 32)]
};

// input[rows, cols] and output[rows, cols] of spec.in; the output may be the input itself, with the same row stride.
struct FloatQuantizeTensors {
  Tensor input;
  Tensor output;
};

}  // namespace ingot
