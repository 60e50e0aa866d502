// A granularity as templates/granularity.cuh has it.
#pragma once

#include "ingot/codegen/types/granularity.h"

#include "granularity.cuh"

namespace ingot {

// Of extents that are not negative, as those of a valid spec.
constexpr Granularity template_granularity(ScaleGranularity granularity) {
  return {.rows = static_cast<u32>(granularity.rows), .cols = static_cast<u32>(granularity.cols)};
}

}  // namespace ingot
