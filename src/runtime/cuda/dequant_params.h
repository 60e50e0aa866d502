// The parameters of the dequant-matmul kernels, from a call's tensors.
#pragma once

#include "ingot/codegen/dequant_spec.h"
#include "ingot/runtime/backend.h"

#include "dequant_mma.cuh"

namespace ingot::cuda {

EpilogueParams epilogue_params(const DequantMatmulTensors& tensors);

// Of a spec with a tiling, whose split it is. parts and arrived: dequant_mma_parts_bytes(), and a zero for each tile,
// where the split is more than one.
DequantMmaParams dequant_mma_params(const DequantMatmulSpec& spec, const DequantMatmulTensors& tensors, void* parts,
                                    void* arrived);

}  // namespace ingot::cuda
