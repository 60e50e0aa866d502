// Which GEMMs kernels sm90 and mma (templates/gemm/gemm_sm90.cuh, gemm_mma.cuh) support: pure functions of the call and
// the GPU.
#pragma once

#include "ingot/codegen/types/target.h"
#include "ingot/runtime/gemm/gemm_tensors.h"

namespace ingot {

// Why the call is not supported; null if it is. Requires checked tensors.
const char* sm90_refusal(const GemmSpec& spec, const GemmTensors& tensors, const MatmulSize& size, Target device);

// May gemm_sm90 leave scale_inv of groups to the copy engine? It copies multiples of 16 bytes, from such addresses.
// (Those of b's blocks it does not copy.) Requires checked tensors.
bool sm90_by_engine(const GemmSpec& spec, const GemmTensors& tensors, const MatmulSize& size);

const char* mma_refusal(const GemmSpec& spec, const MatmulSize& size, Target device);

}  // namespace ingot
