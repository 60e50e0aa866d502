// Which kernels and tilings a dequant_matmul may be computed with, and a guess at the best: pure functions of the spec,
// the sizes and the GPU.
#pragma once

#include <cstdint>
#include <vector>

#include "ingot/codegen/dequant_spec.h"
#include "ingot/codegen/target.h"

namespace ingot {

struct DequantSize {
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
  bool operator==(const DequantSize&) const = default;
};

// Where it is to run.
struct DequantPlace {
  Target target{};
  int multiprocessors = 0;
};

// Every tiling that the spec's kernel, which is not `automatic`, is offered with for these sizes: the spec's own alone
// where it has one. Never empty, but where the kernel has none for the spec's factors. With batch_invariant those
// whose sums are in the order that the spec, N and K alone decide.
std::vector<DequantTiling> dequant_tilings(const DequantMatmulSpec& spec, const DequantSize& size,
                                           const DequantPlace& place);

// Microseconds, roughly: good for comparing tilings of one size. Of a spec that names its kernel.
double estimate_dequant(const DequantMatmulSpec& spec, const DequantSize& size, const DequantTiling& tiling,
                        const DequantPlace& place);

// Specs that each name a kernel and a tiling, best guess first: a call tries them in turn. Each but the last may refuse
// a call for what only the call knows (addresses, row strides). A spec that names its kernel has that one alone.
std::vector<DequantMatmulSpec> dequant_order(const DequantMatmulSpec& spec, const DequantSize& size,
                                             const DequantPlace& place);

// Those that are worth measuring: of each kernel that runs there the best guesses, dequant_order()'s first one first.
std::vector<DequantMatmulSpec> dequant_candidates(const DequantMatmulSpec& spec, const DequantSize& size,
                                                  const DequantPlace& place);

}  // namespace ingot
