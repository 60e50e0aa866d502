// What a GEMM and the relayout of its operands ask of their tensors, the same on every device: see check.h.
#pragma once

#include "ingot/codegen/kernel_spec.h"
#include "ingot/runtime/gemm/gemm_tensors.h"

namespace ingot {

void check(const GemmSpec& spec, const GemmTensors& tensors, Device device);
void check(const RelayoutSpec& spec, const RelayoutTensors& tensors, Device device);

}  // namespace ingot
