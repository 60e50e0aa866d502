// The parameters of the GEMM templates, of checked tensors.
#pragma once

#include "ingot/codegen/kernel_spec.h"
#include "ingot/runtime/gemm/gemm_shape.h"

#include "gemm/gemm_mma.cuh"
#include "gemm/gemm_params.cuh"

namespace ingot::cuda {

EpilogueParams epilogue_params(const GemmTensors& tensors);
GemmParams gemm_params(const GemmSpec& spec, const GemmTensors& tensors, const MatmulSize& size);
// How rows may be copied follows from where they lie.
GemmMmaParams gemm_mma_params(const GemmSpec& spec, const GemmTensors& tensors, const MatmulSize& size);

}  // namespace ingot::cuda
