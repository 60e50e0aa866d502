// The kernels for one GEMM: the order in which the library tries them, and those that are worth measuring.
#pragma once

#include <vector>

#include "ingot/api.h"
#include "ingot/codegen/matmul.h"

namespace ingot {

// What an untuned call tries one after the other, best guess first: specs that each name a kernel, and its tiling if
// the kernel has tilings. Each may refuse a call for reasons that only the call knows (addresses, pitches, whether
// cuBLASLt is installed), except the last, which takes every call. For a spec that names its kernel, the list has only
// that one. factors_as_read: as estimate_cublaslt() has it.
INGOT_API std::vector<GemmSpec> gemm_order(const GemmCall& call, const MatmulDevice& device,
                                           bool factors_as_read = false);

// The specs that are worth measuring, beginning with gemm_order()'s first, which tuning has to beat: all of cuBLASLt's
// algorithms, the tilings of gemm_sm90 that the cost model does not rule out, and those of gemm_mma, which take what
// the others refuse (gemm_simt for f32 operands). The kernel that the call's spec names is ignored.
INGOT_API std::vector<GemmSpec> gemm_candidates(const GemmCall& call, const MatmulDevice& device);

}  // namespace ingot
