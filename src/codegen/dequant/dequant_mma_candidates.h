// The tilings of kernel dequant_mma, and estimates of their times.
#pragma once

#include <vector>

#include "ingot/codegen/dequant/dequant_spec.h"
#include "ingot/codegen/types/matmul_size.h"

namespace ingot {

std::vector<DequantTiling> dequant_mma_tilings(const MatmulSize& size);

// The tilings that sum each row's terms in the same order as `tiling`.
std::vector<DequantTiling> dequant_mma_tilings_like(const DequantTiling& tiling, const MatmulSize& size);

// Microseconds, roughly.
double estimate_dequant_mma(const DequantMatmulSpec& spec, const MatmulSize& size, const DequantTiling& tiling,
                            int multiprocessors);

}  // namespace ingot
