// The parts of a decoded weight that may share an f32 scale_inv.
#pragma once

#include <array>

#include "ingot/codegen/dequant/dequant_spec.h"
#include "ingot/codegen/types/granularity.h"

namespace ingot {

inline constexpr std::array kDequantGranularities{kTensorwise,  kRowwise,     kRowGroups,
                                                  kRowGroups64, kRowGroups32, kBlocks};

}  // namespace ingot
