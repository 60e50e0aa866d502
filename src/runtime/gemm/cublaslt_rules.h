// Which GEMMs cuBLASLt takes, as a pure function of the call and the GPU.
#pragma once

#include "ingot/codegen/types/target.h"
#include "ingot/runtime/gemm/gemm_shape.h"

namespace ingot {

// Of checked tensors: why not; null where it takes the call.
const char* cublaslt_refusal(const GemmSpec& spec, const GemmTensors& tensors, const MatmulSize& size, Target device);

}  // namespace ingot
