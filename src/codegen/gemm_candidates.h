// The kernels that are worth measuring for one GEMM.
#pragma once

#include <vector>

#include "ingot/codegen/gemm_call.h"
#include "ingot/codegen/target.h"

namespace ingot {

// Specs that each name a kernel, in the order in which the library would take them without tuning: the first that
// takes the call is what tuning has to beat. All of cuBLASLt's algorithms; of gemm_sm90's tilings those that the cost
// model does not rule out; and last both of gemm_mma's, or gemm_simt of f32 operands. Some of them may refuse the call
// when it comes (alignment, the GPU, algorithms that do not exist).
std::vector<GemmSpec> gemm_candidates(const GemmCall& call, Target target, int multiprocessors);

}  // namespace ingot
