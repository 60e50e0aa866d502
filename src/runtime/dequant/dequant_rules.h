// What a dequant-matmul kernel does not take, although its spec is right.
#pragma once

#include "ingot/codegen/dequant/dequant_spec.h"
#include "ingot/codegen/types/target.h"
#include "ingot/runtime/dequant/dequant_shape.h"

namespace ingot {

// Of a spec with a tiling. Null where the kernel takes the call.
const char* dequant_sm90_refusal(const DequantMatmulSpec& spec, const DequantMatmulTensors& tensors, Target device);
const char* dequant_mma_refusal(const DequantMatmulSpec& spec, const MatmulSize& size, Target device);

}  // namespace ingot
