// What pack_weight and dequant_matmul ask of their tensors, the same on every device: see check.h. A packed weight does
// not say what sizes it has: its bytes must be those of the sizes that the other tensors give.
#pragma once

#include "ingot/codegen/kernel_spec.h"
#include "ingot/runtime/dequant/dequant_tensors.h"

namespace ingot {

void check(const PackWeightSpec& spec, const PackWeightTensors& tensors, Device device);
void check(const DequantMatmulSpec& spec, const DequantMatmulTensors& tensors, Device device);

}  // namespace ingot
