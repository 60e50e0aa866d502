// The checks of the tensors of GEMMs, and of the relayout of their operands (see check.h).
#pragma once

#include "ingot/codegen/gemm/gemm_spec.h"
#include "ingot/codegen/gemm/relayout_spec.h"
#include "ingot/runtime/gemm/gemm_tensors.h"

namespace ingot {

void check(const GemmSpec& spec, const GemmTensors& tensors, Device device);
// Checks a pair, neither of which may write what the other reads or writes.
void check(const GemmWork& first, const GemmWork& second, Device device);
void check(const RelayoutSpec& spec, const RelayoutTensors& tensors, Device device);

}  // namespace ingot
