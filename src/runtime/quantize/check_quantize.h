// The checks of the tensors of quantize_mx and float_quantize (see check.h).
#pragma once

#include "ingot/codegen/quantize/quantize_spec.h"
#include "ingot/runtime/quantize/quantize_tensors.h"

namespace ingot {

void check(const MxQuantizeSpec& spec, const MxQuantizeTensors& tensors, Device device);
void check(const FloatQuantizeSpec& spec, const FloatQuantizeTensors& tensors, Device device);

}  // namespace ingot
