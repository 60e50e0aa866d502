// Which GEMMs cuBLASLt supports: a pure function of the call, the GPU and the library's version.
#pragma once

#include <cstddef>

#include "ingot/codegen/types/target.h"
#include "ingot/runtime/gemm/gemm_shape.h"

namespace ingot {

// Why the call is not supported; null if it is. Requires checked tensors. `version` is cublasLtGetVersion()'s: 130100
// for 13.1.0.
const char* cublaslt_refusal(const GemmSpec& spec, const GemmTensors& tensors, const MatmulSize& size, Target device,
                             std::size_t version);

// The bytes, a multiple of 256, of an aligned copy of the bias, which such a call of 16-bit or f32 operands needs; 0 if
// the bias can be read where it is. (The library does not check the bias's address.)
std::size_t cublaslt_bias_bytes(const GemmSpec& spec, const GemmTensors& tensors);

}  // namespace ingot
