// The tilings of gemm_sm90, and a cost model that picks the fastest of them, or of gemm_mma's, for a size. Pure
// functions: no device, no measurement.
#pragma once

#include <cstdint>
#include <span>

#include "ingot/api.h"
#include "ingot/codegen/gemm/gemm_spec.h"
#include "ingot/codegen/types/matmul_size.h"

namespace ingot {

// The tilings for the spec's kind of accumulation, in a fixed order; the first is the best for large matmuls. If the
// spec has a tiling, only that one.
INGOT_API std::span<const GemmTiling> gemm_tilings(const GemmSpec& spec);

// Microseconds on a GPU with this many multiprocessors, roughly: good for comparing tilings of one size.
INGOT_API double estimate_gemm(const GemmSpec& spec, const MatmulSize& size, const GemmTiling& tiling,
                               int multiprocessors);

// The part of that time in which the memory is busy. A launch that computes several GEMMs takes at least the sum of
// theirs.
INGOT_API double estimate_traffic(const GemmSpec& spec, const MatmulSize& size);

// The time of cuBLASLt's first choice, for two FP8 operands. scale_inv_as_read: scale_inv of groups are stored as
// cuBLASLt reads them, so that they are not copied first.
INGOT_API double estimate_cublaslt(const GemmSpec& spec, const MatmulSize& size, int multiprocessors,
                                   bool scale_inv_as_read = false);

// The tiling with the lowest estimate; of equal ones, the first. Does not allocate.
INGOT_API GemmTiling choose_sm90_tiling(const GemmSpec& spec, const MatmulSize& size, int multiprocessors);

// If cuBLASLt takes the call too: is gemm_sm90 expected to be no slower than cuBLASLt's first choice?
INGOT_API bool prefers_sm90(const GemmSpec& spec, const MatmulSize& size, int multiprocessors,
                            bool scale_inv_as_read = false);

// For a spec of gemm_sm90 with a tiling: is it expected to be faster, staging included, than gemm_mma, which reads the
// operands as they are stored?
INGOT_API bool prefers_staging(const GemmSpec& spec, const MatmulSize& size, int multiprocessors);

// For gemm_mma: the spec's tiling, else the large tile if there are enough tiles for every multiprocessor.
INGOT_API GemmTiling choose_mma_tiling(const GemmSpec& spec, const MatmulSize& size, int multiprocessors);

}  // namespace ingot
