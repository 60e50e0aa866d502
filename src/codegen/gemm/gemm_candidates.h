// The kernels for one GEMM or two: the order in which the library tries them, those that are worth measuring, and
// whether one launch computes two. Pure functions.
#pragma once

#include <optional>
#include <vector>
#include "ingot/api.h"
#include "ingot/codegen/gemm/gemm_spec.h"
#include "ingot/codegen/matmul.h"
#include "ingot/codegen/types/matmul_size.h"
#include "ingot/codegen/types/target.h"

namespace ingot {

// What an untuned call tries one after the other, best guess first: specs that each name a kernel, and its tiling if
// the kernel has tilings. Each may refuse a call for reasons that only the call knows (addresses, pitches, whether
// cuBLASLt is installed), except the last, which takes every call. For a spec that names its kernel, the list has only
// that one. scale_inv_as_read: as estimate_cublaslt() has it.
INGOT_API std::vector<GemmSpec> gemm_order(const GemmCall& call, const MatmulDevice& device,
                                           bool scale_inv_as_read = false);

// The specs that are worth measuring, beginning with gemm_order()'s first, which tuning has to beat: all of cuBLASLt's
// algorithms, the tilings of gemm_sm90 that the cost model does not rule out, and those of gemm_mma, which take what
// the others refuse (gemm_simt for f32 operands). The kernel that the call's spec names is ignored.
INGOT_API std::vector<GemmSpec> gemm_candidates(const GemmCall& call, const MatmulDevice& device);

// Whether one launch computes two GEMMs (GemmPairSpec), and with which tilings. The GEMM on kernel sm90, with each
// tiling that a pair can have, in the order of gemm_tilings().
INGOT_API std::vector<GemmSpec> pair_halves(const GemmSpec& spec);

// The spec that a pair uses for this GEMM: kernel sm90 with the tiling that is expected to be the fastest on half of
// the multiprocessors. Empty if there is no such kernel, or if there are too many tiles to gain from a pair.
INGOT_API std::optional<GemmSpec> fastest_half(const GemmCall& call, int multiprocessors);

// Empty where two launches are expected to be as fast, or where the device or a spec has no such kernel. Two specs that
// both name kernel sm90 and a tiling are a pair wherever there is a kernel. A spec that names another kernel is never
// paired.
INGOT_API std::optional<GemmPairSpec> choose_gemm_pair(const GemmCall& first, const GemmCall& second,
                                                       const MatmulDevice& device);

}  // namespace ingot
