// Which GEMMs kernel sm90 (templates/gemm/gemm_sm90.cuh) supports: a pure function of the call and the GPU.
#pragma once

#include "ingot/codegen/types/target.h"
#include "ingot/runtime/gemm/gemm_shape.h"

namespace ingot {

// Why the call is not supported; null if it is. Requires checked tensors.
const char* sm90_refusal(const GemmSpec& spec, const GemmTensors& tensors, const MatmulSize& size, Target device);

}  // namespace ingot
