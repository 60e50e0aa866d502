// Which instantiation of the templates computes a dequant_matmul.
#pragma once

#include "ingot/codegen/dequant/dequant_spec.h"
#include "ingot/codegen/types/template_instance.h"

namespace ingot {

TemplateInstance dequant_instance(const PackWeightSpec& given);
TemplateInstance dequant_instance(const DequantMatmulSpec& given);

}  // namespace ingot
