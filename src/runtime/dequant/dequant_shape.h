// The sizes of a dequant_matmul, from checked tensors.
#pragma once

#include "ingot/codegen/types/matmul_size.h"
#include "ingot/runtime/dequant/dequant_tensors.h"

namespace ingot {

inline MatmulSize dequant_size(const DequantMatmulTensors& tensors) {
  return {.m = tensors.x.rows, .n = tensors.out.cols, .k = tensors.x.cols};
}

}  // namespace ingot
