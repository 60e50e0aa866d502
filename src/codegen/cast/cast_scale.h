// The granularities that a cast's scales may have.
#pragma once

#include <fmt/format.h>

#include "ingot/codegen/types/granularity.h"
#include "ingot/codegen/types/spec_checks.h"

namespace ingot {

template <class Spec>
void require_cast_scale(const Spec& spec, const char* field, ScaleGranularity scale) {
  for (const ScaleGranularity allowed : kCastGranularities) {
    if (scale == allowed) return;
  }
  refuse(spec, fmt::format("{} is {}, but must be tensor, row, col, 1x128, 128x1 or 128x128", field, print(scale)));
}

}  // namespace ingot
