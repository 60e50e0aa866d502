// The finishing pass of column sums, which casts with sums and the backward passes of norms take too.
#pragma once

#include "ingot/codegen/types/dtype.h"
#include "ingot/codegen/types/template_instance.h"

namespace ingot {

// Adds up the partial sums and rounds them to `out`.
TemplateInstance column_sum_finish(Dtype out);

}  // namespace ingot
