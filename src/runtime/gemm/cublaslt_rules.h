// Which GEMMs cuBLASLt supports: a pure function of the call, the GPU and the library's version.
#pragma once

#include <cstddef>

#include "ingot/codegen/types/target.h"
#include "ingot/runtime/gemm/gemm_shape.h"

namespace ingot {

// For checked tensors: why the call is not supported; null if it is. `version` is cublasLtGetVersion()'s: 130100 for
// 13.1.0.
const char* cublaslt_refusal(const GemmSpec& spec, const GemmTensors& tensors, const MatmulSize& size, Target device,
                             std::size_t version);

}  // namespace ingot
