// Which calls the dequant_matmul kernels support: pure functions of the call and the GPU.
#pragma once

#include "ingot/codegen/dequant/dequant_spec.h"
#include "ingot/codegen/types/target.h"
#include "ingot/runtime/dequant/dequant_shape.h"

namespace ingot {

// Why the call is not supported; null if it is. Requires a spec with a tiling.
const char* dequant_sm90_refusal(const DequantMatmulSpec& spec, const DequantMatmulTensors& tensors, Target device);
const char* dequant_mma_refusal(const DequantMatmulSpec& spec, const MatmulSize& size, Target device);

}  // namespace ingot
