// The immutable body that copies of an expression share.
#pragma once

#include <cstddef>
#include <vector>

#include "ingot/codegen/pointwise/pointwise.h"

namespace ingot {

struct Pointwise::Body {
  std::vector<PointwiseStep> steps;
  std::vector<PointwiseInput> inputs;
  bool uses_x = false;
  std::size_t hash = 0;
};

}  // namespace ingot
