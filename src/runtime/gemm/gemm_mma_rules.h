// Which GEMMs kernel mma (templates/gemm/gemm_mma.cuh) supports: a pure function of the call and the GPU.
#pragma once

#include "ingot/codegen/types/target.h"
#include "ingot/runtime/gemm/gemm_shape.h"

namespace ingot {

// Why the call is not supported; null if it is.
const char* mma_refusal(const GemmSpec& spec, const MatmulSize& size, Target device);

}  // namespace ingot
