// How long a kernel's compile takes beside that of another: what compiles many of them begins with the longest, so that
// none is left to run alone at the end.
#pragma once

#include "ingot/codegen/kernel_spec.h"

namespace ingot {

// In units of about 0.2 s of one core, of which only the order counts (docs/notes/compile_time.md).
double compile_cost(const KernelSpec& spec);

}  // namespace ingot
