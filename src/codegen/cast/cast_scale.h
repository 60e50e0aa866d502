// The granularities that a cast's scales may have.
#pragma once

#include <fmt/format.h>

#include "ingot/codegen/types/granularity.h"
#include "ingot/codegen/types/spec_checks.h"

namespace ingot {

template <class Spec>
void require_cast_scale(const Spec& spec, const char* field, ScaleGranularity scale) {
  if (among(kCastGranularities, scale)) return;
  refuse(spec, fmt::format("{} is {}, but must be {}", field, print(scale), one_of(kCastGranularities)));
}

}  // namespace ingot
