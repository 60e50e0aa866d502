// Makes the parameter structs of kernels simt and mma, and of all epilogues, from checked tensors.
#pragma once

#include "ingot/codegen/gemm/gemm_spec.h"
#include "ingot/runtime/gemm/gemm_shape.h"

#include "gemm/gemm_mma.cuh"
#include "gemm/gemm_params.cuh"

namespace ingot::cuda {

EpilogueParams epilogue_params(const GemmTensors& tensors);
GemmParams gemm_params(const GemmSpec& spec, const GemmTensors& tensors, const MatmulSize& size);
// Decides from addresses and strides how rows may be copied.
GemmMmaParams gemm_mma_params(const GemmSpec& spec, const GemmTensors& tensors, const MatmulSize& size);

}  // namespace ingot::cuda
