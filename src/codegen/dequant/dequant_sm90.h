// Converts a tiling of kernel sm90 to the type of templates/dequant/dequant_sm90_tiling.cuh, and says what follows from
// it: whether the kernel can be built, how much shared memory it uses, which tilings suit a size, and how long they
// take; and what is wrong with a tiling of either kernel.
#pragma once

#include <string>
#include <vector>
#include "dequant/dequant_sm90_tiling.cuh"
#include "ingot/codegen/dequant/dequant_spec.h"
#include "ingot/codegen/types/matmul_size.h"

namespace ingot {

// The numbers of the tiling must be positive.
DequantSm90Tiling dequant_sm90_tiling(const DequantMatmulSpec& spec, const DequantTiling& tiling);

// How each kernel applies the spec's scale_inv.
DequantFactors dequant_sm90_factors(const DequantMatmulSpec& spec);
DequantFactors dequant_mma_scale_inv(const DequantMatmulSpec& spec);

// Can the kernel be built with this tiling, for the spec's weight and scale_inv?
bool dequant_sm90_exists(const DequantMatmulSpec& spec, const DequantTiling& tiling);

// The tiling with as many stages as shared memory holds, 32 at most; 0 stages if the kernel cannot be built.
DequantTiling with_all_stages(const DequantMatmulSpec& spec, DequantTiling tiling);

// The tiling with the stages that fill `percent` of a multiprocessor's shared memory; with fewer than two, the kernel
// cannot be built.
DequantTiling with_stages(const DequantMatmulSpec& spec, DequantTiling tiling, int percent);

// The share (0 to 1) of a multiprocessor's shared memory that its blocks use, without what a launch requests beyond it.
double dequant_sm90_fills(const DequantMatmulSpec& spec, const DequantTiling& tiling);

// Shared memory that the kernel uses.
u32 dequant_sm90_shared_bytes(const DequantMatmulSpec& spec, const DequantTiling& tiling);
// Shared memory to request so that at most `blocks` (one or more) fit on a multiprocessor. Otherwise, while the
// previous kernel ends, the first multiprocessors to become free would take twice as many blocks, and the last ones
// none.
u32 dequant_sm90_launch_bytes(const DequantMatmulSpec& spec, const DequantTiling& tiling, u32 blocks);

// Why the spec's kernel, which must not be `automatic`, cannot be built with this tiling, for messages; empty if it
// can.
std::string dequant_tiling_fault(const DequantMatmulSpec& spec, const DequantTiling& tiling);

// The tilings that suit the sizes: those with mma.sync and those with wgmma, or only the latter.
std::vector<DequantTiling> dequant_sm90_tilings(const DequantMatmulSpec& spec, const MatmulSize& size, bool wgmma_alone,
                                                int multiprocessors);

// The tilings that suit the sizes and sum each row's terms in the same order as `tiling`, which must use wgmma.
std::vector<DequantTiling> dequant_sm90_tilings_like(DequantTiling tiling, const DequantMatmulSpec& spec,
                                                     const MatmulSize& size);

// Microseconds, roughly.
double estimate_dequant_sm90(const DequantMatmulSpec& spec, const MatmulSize& size, const DequantTiling& tiling,
                             int multiprocessors);

}  // namespace ingot
