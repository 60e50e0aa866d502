// Which GEMMs templates/gemm/gemm_sm90.cuh takes. A pure function of the call and the device.
#pragma once

#include "ingot/codegen/types/target.h"
#include "ingot/runtime/gemm/gemm_shape.h"

namespace ingot {

// Null where it takes the call, else why not. Of checked tensors.
const char* sm90_refusal(const GemmSpec& spec, const GemmTensors& tensors, const MatmulSize& size, Target device);

}  // namespace ingot
