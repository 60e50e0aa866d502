// An expression as CUDA C++.
#pragma once

#include <string>
#include <string_view>

#include "ingot/codegen/pointwise/pointwise.h"

namespace ingot {

// The struct that templates/pointwise/pointwise.cuh describes, in namespace ingot; the text around it includes that
// header. Its steps are those of PointwiseProgram, each a temporary, so that nothing is left to the compiler but the
// schedule. No text of the user's gets in: inputs are a0, a1 ..., numbers are written in hexadecimal. `functor_name` is
// an identifier.
std::string render(const Pointwise& expression, std::string_view functor_name, PointwisePrecision precision);

}  // namespace ingot
