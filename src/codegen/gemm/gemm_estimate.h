// Tilings that gemm_sm90 can be made with, and a guess at which of them suits a shape; and which of gemm_mma's. Pure
// functions: no device, no measurement.
#pragma once

#include <cstdint>
#include <span>

#include "ingot/codegen/gemm/gemm_spec.h"
#include "ingot/codegen/types/matmul_size.h"

namespace ingot {

// In a fixed order, the first the best for large products. Those of a spec's kind of accumulation; the spec's own where
// it has one.
std::span<const GemmTiling> gemm_tilings(const GemmSpec& spec);

// Microseconds on a GPU with this many multiprocessors, roughly: good for comparing tilings of one size.
double estimate_gemm(const GemmSpec& spec, const MatmulSize& size, const GemmTiling& tiling, int multiprocessors);

// The same of cuBLASLt's first choice for two FP8 operands without factors of groups.
double estimate_cublaslt(const GemmSpec& spec, const MatmulSize& size, int multiprocessors);

// The candidate of the smallest estimate, the first of equals. Neither allocates nor depends on anything else.
GemmTiling choose_sm90_tiling(const GemmSpec& spec, const MatmulSize& size, int multiprocessors);

// Where cuBLASLt takes the call too: is gemm_sm90 expected to be no slower than its first choice?
bool prefers_sm90(const GemmSpec& spec, const MatmulSize& size, int multiprocessors);

// Of a spec of gemm_sm90 with a tiling: is it expected to be faster, its operands staged first, than gemm_mma, which
// takes them as they lie?
bool prefers_staging(const GemmSpec& spec, const MatmulSize& size, int multiprocessors);

// Of gemm_mma: the spec's own, else the large tile where there are enough of them for every multiprocessor.
GemmTiling choose_mma_tiling(const GemmSpec& spec, const MatmulSize& size, int multiprocessors);

}  // namespace ingot
