// A granularity as templates/granularity.cuh has it.
#pragma once

#include "ingot/codegen/types/granularity.h"

#include "granularity.cuh"

namespace ingot {

// Requires extents that are not negative, as a valid spec has them.
constexpr Granularity template_granularity(ScaleGranularity granularity) {
  return {.rows = static_cast<u32>(granularity.rows), .cols = static_cast<u32>(granularity.cols)};
}

}  // namespace ingot
