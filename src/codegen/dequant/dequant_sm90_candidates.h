// The tilings of kernel dequant_sm90, and estimates of their times.
#pragma once

#include <vector>

#include "ingot/codegen/dequant/dequant_spec.h"
#include "ingot/codegen/types/matmul_size.h"

namespace ingot {

// The tilings that suit the sizes: those with mma.sync and those with wgmma, or only the latter.
std::vector<DequantTiling> dequant_sm90_tilings(const DequantMatmulSpec& spec, const MatmulSize& size,
                                                bool wgmma_alone);

// The tilings that suit the sizes and sum each row's terms in the same order as `tiling`, which must use wgmma.
std::vector<DequantTiling> dequant_sm90_tilings_like(DequantTiling tiling, const DequantMatmulSpec& spec,
                                                     const MatmulSize& size);

// Microseconds, roughly.
double estimate_dequant_sm90(const DequantMatmulSpec& spec, const MatmulSize& size, const DequantTiling& tiling,
                             int multiprocessors);

}  // namespace ingot
