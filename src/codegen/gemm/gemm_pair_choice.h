// Decides whether one launch computes two GEMMs (gemm_pair_spec.h), and with which tilings. A pure function.
#pragma once

#include <optional>
#include <vector>

#include "ingot/codegen/gemm/gemm_pair_spec.h"
#include "ingot/codegen/matmul.h"
#include "ingot/codegen/types/matmul_size.h"

namespace ingot {

// The GEMM on kernel sm90, with each tiling that a pair can have, in the order of gemm_tilings().
std::vector<GemmSpec> pair_halves(const GemmSpec& spec);

// The spec that a pair uses for this GEMM: kernel sm90 with the tiling that is expected to be the fastest on half of
// the multiprocessors. Empty if there is no such kernel, or if there are too many tiles to gain from a pair.
std::optional<GemmSpec> fastest_half(const GemmCall& call, int multiprocessors);

// Empty where two launches are expected to be as fast, or where the device or a spec has no such kernel. Two specs that
// both name kernel sm90 and a tiling are a pair wherever there is a kernel. A spec that names another kernel is never
// paired.
std::optional<GemmPairSpec> choose_gemm_pair(const GemmCall& first, const GemmCall& second, const MatmulDevice& device);

}  // namespace ingot
