// The tensors of column_sum. Backend (backend.h) has the call.
#pragma once

#include "ingot/runtime/tensor.h"

namespace ingot {

// input[rows, cols] of spec.in; sum[cols] of spec.out.
struct ColumnSumTensors {
  Tensor input;
  Tensor sum;
};

}  // namespace ingot
