// Which kernels and tilings a dequant_matmul may be computed with, and a guess at the best: pure functions of the spec,
// the sizes and the GPU.
#pragma once

#include <cstdint>
#include <vector>

#include "ingot/codegen/dequant/dequant_spec.h"
#include "ingot/codegen/types/matmul_size.h"

namespace ingot {

// Every tiling that the spec's kernel, which is not `automatic`, is offered with for these sizes: the spec's own alone
// where it has one. Never empty, but where the kernel has none for the spec's factors. With batch_invariant those
// whose sums are in the order that the spec, N and K alone decide.
std::vector<DequantTiling> dequant_tilings(const DequantMatmulSpec& spec, const MatmulSize& size,
                                           const MatmulDevice& place);

// The spec with each kernel that it may have there, the faster one first; alone where it names one.
std::vector<DequantMatmulSpec> dequant_kernels(const DequantMatmulSpec& spec, const MatmulDevice& place);

// Microseconds, roughly: good for comparing tilings of one size. Of a spec that names its kernel.
double estimate_dequant(const DequantMatmulSpec& spec, const MatmulSize& size, const DequantTiling& tiling,
                        const MatmulDevice& place);

// Specs that each name a kernel and a tiling, best guess first: a call tries them in turn. Each but the last may refuse
// a call for what only the call knows (addresses, row strides). A spec that names its kernel has that one alone.
std::vector<DequantMatmulSpec> dequant_order(const DequantMatmulSpec& spec, const MatmulSize& size,
                                             const MatmulDevice& place);

// Those that are worth measuring: of each kernel that runs there the best guesses, dequant_order()'s first one first.
std::vector<DequantMatmulSpec> dequant_candidates(const DequantMatmulSpec& spec, const MatmulSize& size,
                                                  const MatmulDevice& place);

}  // namespace ingot
