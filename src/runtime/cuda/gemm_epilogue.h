// The parameters of templates/gemm_epilogue.cuh, of checked tensors.
#pragma once

#include "ingot/runtime/backend.h"

#include "gemm_epilogue.cuh"

namespace ingot::cuda {

EpilogueParams epilogue_params(const GemmTensors& tensors);

}  // namespace ingot::cuda
