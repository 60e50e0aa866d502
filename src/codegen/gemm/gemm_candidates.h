// The kernels for one GEMM: in which order the library would take them, and which of them are worth measuring.
#pragma once

#include <vector>

#include "ingot/codegen/gemm/gemm_call.h"

namespace ingot {

// Specs that each name a kernel, with its tiling where it has some, best guess first: what an untuned call tries in
// turn. Each may refuse a call for what only the call knows (addresses, pitches, cuBLASLt's presence), the last never.
// A spec that names its kernel is alone.
std::vector<GemmSpec> gemm_order(const GemmCall& call, const MatmulDevice& place);

// Those that are worth measuring, gemm_order()'s first one first, so that tuning knows what it has to beat. All of
// cuBLASLt's algorithms; of gemm_sm90's tilings those that the cost model does not rule out; gemm_mma's, which take
// what the others refuse, or gemm_simt for f32 operands. Whatever kernel the call's spec names.
std::vector<GemmSpec> gemm_candidates(const GemmCall& call, const MatmulDevice& place);

}  // namespace ingot
