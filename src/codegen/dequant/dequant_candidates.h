// The kernels and tilings that can compute a dequant_matmul, and estimates of the fastest: pure functions of the spec,
// the sizes and the GPU.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "ingot/codegen/dequant/dequant_spec.h"
#include "ingot/codegen/types/matmul_size.h"
#include "ingot/codegen/types/target.h"

namespace ingot {

// With experts: the size by which kernels and tilings are chosen, and which functions here expect. It is that of one
// matmul with about as many tiles: m rows of each expert, n columns of all experts that may have rows. all: M of all
// experts, N of one. With a capacity, the host does not know how many of an expert's rows are in use; up to 64 are
// expected, as in decoding.
MatmulSize size_of_experts(const MatmulSize& all, std::int64_t experts, std::optional<std::int64_t> capacity);

// Lists the tilings of the spec's kernel for these sizes. The kernel must not be `automatic`. If the spec has a tiling,
// the list has only that one; if the spec is batch_invariant, only tilings whose order of summation depends on nothing
// but the spec, N and K. The list is empty only if the kernel has no tiling for the spec's scale_inv.
std::vector<DequantTiling> dequant_tilings(const DequantMatmulSpec& spec, const MatmulSize& size,
                                           const MatmulDevice& device);

// The spec with each kernel that it can use on that GPU, the faster one first; if it names a kernel, only that one.
std::vector<DequantMatmulSpec> dequant_kernels(const DequantMatmulSpec& spec, const MatmulDevice& device);

// Microseconds, roughly: good for comparing tilings of one size. The spec must name its kernel.
double estimate_dequant(const DequantMatmulSpec& spec, const MatmulSize& size, const DequantTiling& tiling,
                        const MatmulDevice& device);

// Specs that each name a kernel and a tiling, best guess first: a call tries them one after the other. Each but the
// last may refuse a call for reasons that only the call knows (addresses, row strides). For a spec that names its
// kernel, the list has only that one.
std::vector<DequantMatmulSpec> dequant_order(const DequantMatmulSpec& spec, const MatmulSize& size,
                                             const MatmulDevice& device);

// The specs that are worth measuring: the best guesses for each kernel that runs on that GPU, dequant_order()'s first
// one first.
std::vector<DequantMatmulSpec> dequant_candidates(const DequantMatmulSpec& spec, const MatmulSize& size,
                                                  const MatmulDevice& device);

}  // namespace ingot
