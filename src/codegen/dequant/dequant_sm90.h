// A tiling of kernel sm90 as templates/dequant/dequant_sm90_tiling.cuh has it, and what follows from it.
#pragma once

#include "ingot/codegen/dequant/dequant_spec.h"

#include "dequant/dequant_sm90_tiling.cuh"

namespace ingot {

// Of a tiling whose numbers are positive.
DequantSm90Tiling dequant_sm90_tiling(const DequantTiling& tiling);

// As kernel sm90 has them, and as mma.
DequantFactors dequant_sm90_factors(const DequantMatmulSpec& spec);
DequantFactors dequant_mma_factors(const DequantMatmulSpec& spec);

// Can the kernel be made of it, for the spec's weight and factors?
bool dequant_sm90_exists(const DequantMatmulSpec& spec, const DequantTiling& tiling);

// With as many stages as shared memory holds, 32 at most; 0 stages where the kernel cannot be made.
DequantTiling with_all_stages(const DequantMatmulSpec& spec, DequantTiling tiling);

// With as many as fill so many percent of a multiprocessor's shared memory: fewer than two, and the kernel cannot be
// made.
DequantTiling with_stages(const DequantMatmulSpec& spec, DequantTiling tiling, int percent);

// Of a multiprocessor's shared memory what its blocks use, of 1: without what a launch asks for beside it.
double dequant_sm90_fills(const DequantMatmulSpec& spec, const DequantTiling& tiling);

// What the kernel uses.
u32 dequant_sm90_shared_bytes(const DequantMatmulSpec& spec, const DequantTiling& tiling);
// What a launch asks for, of which no multiprocessor is to have more than so many blocks, one or more: so much, too,
// that it has no room for more. While the kernel ahead ends, the first multiprocessors that are free would else have
// twice as many, and the last ones none.
u32 dequant_sm90_launch_bytes(const DequantMatmulSpec& spec, const DequantTiling& tiling, u32 blocks);

}  // namespace ingot
