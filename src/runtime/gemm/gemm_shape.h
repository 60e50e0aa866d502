// The sizes of a GEMM, from its tensors.
#pragma once

#include <cstdint>

#include "ingot/codegen/gemm/gemm_spec.h"
#include "ingot/codegen/types/matmul_size.h"
#include "ingot/runtime/cast/factor_strides.h"
#include "ingot/runtime/gemm/gemm_tensors.h"

namespace ingot {

// K of an operand; and its other extent, which is M for a and N for b.
std::int64_t extent_k(const Tensor& operand, Layout layout);
std::int64_t extent_mn(const Tensor& operand, Layout layout);

// The tensors must have been checked (check_gemm.h).
MatmulSize gemm_size(const GemmSpec& spec, const GemmTensors& tensors);

}  // namespace ingot
