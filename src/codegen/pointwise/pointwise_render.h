// An expression as CUDA C++.
#pragma once

#include <string>
#include <string_view>

#include "ingot/codegen/pointwise/pointwise.h"

namespace ingot {

// Writes the struct that templates/pointwise/pointwise.cuh describes, in namespace ingot; the unit that contains it
// includes that header. It has the steps of PointwiseProgram, each as a temporary, which leaves the compiler nothing to
// decide but the schedule. None of the user's text gets in: inputs are named a0, a1 ..., and numbers are written in
// hexadecimal. `functor_name` is an identifier.
std::string render(const Pointwise& expression, std::string_view functor_name, PointwisePrecision precision);

}  // namespace ingot
