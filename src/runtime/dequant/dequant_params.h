// The parameters of the dequant-matmul kernels, from a call's tensors.
#pragma once

#include "ingot/codegen/dequant/dequant_spec.h"
#include "ingot/runtime/dequant/dequant_tensors.h"

#include "dequant/dequant_mma.cuh"

namespace ingot::cuda {

EpilogueParams epilogue_params(const DequantMatmulTensors& tensors);

// Of a spec with a tiling of the kernel mma.
DequantMmaTiling dequant_mma_tiling(const DequantMatmulSpec& spec);
// Tokens that one launch takes: all of them, or as many whole tiles as have sums of 64 MiB and less where K is split,
// but at least one tile.
i64 dequant_mma_slice(const DequantMatmulSpec& spec, i64 m, i64 n);
// The call for `count` tokens from `first` on alone.
DequantMatmulTensors tokens_of(const DequantMatmulSpec& spec, const DequantMatmulTensors& tensors, i64 first,
                               i64 count);

// Of a spec with a tiling, whose split it is. parts and arrived: dequant_mma_parts_bytes(), and a zero for each tile,
// where the split is more than one.
DequantMmaParams dequant_mma_params(const DequantMatmulSpec& spec, const DequantMatmulTensors& tensors, void* parts,
                                    void* arrived);

}  // namespace ingot::cuda
