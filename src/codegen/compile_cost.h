// Estimates how long a kernel takes to compile, relative to the others. Whoever compiles many kernels begins with the
// longest, so that none is left to run alone at the end.
#pragma once

#include "ingot/codegen/kernel_spec.h"

namespace ingot {

// A unit is about 0.2 s of one core. Callers compare costs; the values themselves are rough.
double compile_cost(const KernelSpec& spec);

}  // namespace ingot
