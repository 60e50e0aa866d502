// The kernel of templates/cast/column_sum.cuh that finishes column sums. Casts with sums and the backward passes of
// norms use it as their last pass too.
#pragma once

#include "ingot/codegen/types/dtype.h"
#include "ingot/codegen/types/template_instance.h"

namespace ingot {

// Adds up the partial sums and rounds them to `out`.
TemplateInstance column_sum_finish(Dtype out);

}  // namespace ingot
