// Makes the parameter structs of the dequant_matmul kernels from a call's tensors.
#pragma once

#include "ingot/codegen/dequant/dequant_spec.h"
#include "ingot/runtime/dequant/dequant_tensors.h"

#include "dequant/dequant_mma.cuh"

namespace ingot::cuda {

EpilogueParams epilogue_params(const DequantMatmulTensors& tensors);
// Zeros without experts.
DequantExperts expert_params(const DequantMatmulSpec& spec, const DequantMatmulTensors& tensors);

// Requires a spec with a tiling of kernel mma.
DequantMmaTiling dequant_mma_tiling(const DequantMatmulSpec& spec);
// How many tokens one launch takes: all of them, or, if K is split, as many whole tiles as have sums of at most 64 MiB,
// but at least one tile.
i64 dequant_mma_slice(const DequantMatmulSpec& spec, i64 m, i64 n);
// The same call for only `count` tokens, starting at `first`.
DequantMatmulTensors tokens_of(const DequantMatmulSpec& spec, const DequantMatmulTensors& tensors, i64 first,
                               i64 count);

// Requires a spec with a tiling. If that splits K, `parts` has dequant_mma_parts_bytes(), and `arrived` a zero for each
// tile.
DequantMmaParams dequant_mma_params(const DequantMatmulSpec& spec, const DequantMatmulTensors& tensors, void* parts,
                                    void* arrived);

}  // namespace ingot::cuda
