// The kernels of templates/cast/amax.cuh. Casts use them as their first pass too.
#pragma once

#include <string>

#include "ingot/codegen/cast/cast_plan.h"
#include "ingot/codegen/types/dtype.h"
#include "ingot/codegen/types/template_instance.h"

namespace ingot {

TemplateInstance amax_partials(Dtype in);
TemplateInstance amax_rows(Dtype in);
// values: a type of templates/cast/source.cuh. words: what the values are, for the comment. keeps: the kernel also
// writes them.
TemplateInstance amax_tiles(const std::string& values, const FirstPass& wanted, const std::string& words,
                            bool keeps = false);

}  // namespace ingot
