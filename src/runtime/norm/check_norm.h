// The checks of the tensors of norms, forward and backward (see check.h).
#pragma once

#include "ingot/codegen/norm/norm_spec.h"
#include "ingot/runtime/norm/norm_tensors.h"

namespace ingot {

void check(const NormSpec& spec, const NormTensors& tensors, Device device);
void check(const NormBackwardSpec& spec, const NormBackwardTensors& tensors, Device device);

}  // namespace ingot
