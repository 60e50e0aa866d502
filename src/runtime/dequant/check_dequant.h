// The checks of the tensors of pack_weight and dequant_matmul (see check.h). A packed weight does not record its sizes,
// so its number of bytes must match the sizes of the other tensors.
#pragma once

#include "ingot/codegen/dequant/dequant_spec.h"
#include "ingot/runtime/dequant/dequant_tensors.h"

namespace ingot {

void check(const PackWeightSpec& spec, const PackWeightTensors& tensors, Device device);
void check(const DequantMatmulSpec& spec, const DequantMatmulTensors& tensors, Device device);

}  // namespace ingot
