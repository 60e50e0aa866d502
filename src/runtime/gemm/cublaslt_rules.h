// Which GEMMs cuBLASLt supports, and how it reads the scale_inv of groups: pure functions of the call, the GPU and the
// library's version.
#pragma once

#include <cstddef>
#include <cstdint>
#include "ingot/codegen/types/granularity.h"
#include "ingot/codegen/types/matmul_size.h"
#include "ingot/codegen/types/target.h"
#include "ingot/runtime/gemm/gemm_tensors.h"

namespace ingot {

// Why the call is not supported; null if it is. Requires checked tensors. `version` is cublasLtGetVersion()'s: 130100
// for 13.1.0.
const char* cublaslt_refusal(const GemmSpec& spec, const GemmTensors& tensors, const MatmulSize& size, Target device,
                             std::size_t version);

// The bytes, a multiple of 256, of an aligned copy of the bias, which such a call of 16-bit or f32 operands needs; 0 if
// the bias can be read where it is. (The library does not check the bias's address.)
std::size_t cublaslt_bias_bytes(const GemmSpec& spec, const GemmTensors& tensors);

// The order in which cuBLASLt reads the scale_inv of groups of 128 of K (its scale modes VEC128_32F and
// BLK128x128_32F), and how other layouts are converted to it.
//
// As row-major matrices of f32, with G = ceil(K / 128):
//   one scale_inv for each 1x128 group    [G, rows of the operand], without padding
//   one scale_inv for each 128x128 block  [ceil(rows / 128), G], rows at multiples of 4 elements
// So scale_inv that a cast of the operand writes row by row must be transposed, and those of blocks be copied if G is
// no multiple of 4. Those of an operand's transpose (GemmTensors) are the other way round.

// A row-major matrix of f32, with `pitch` elements from one row to the next.
struct ScaleInvMatrix {
  std::int64_t rows, cols, pitch;
};

struct CublasltScaleInv {
  bool moved = false;       // cuBLASLt cannot read them where they are
  bool transposed = false;  // between `given` and `read`
  ScaleInvMatrix given{};
  ScaleInvMatrix read{};

  // The size of the copy, in multiples of 256; 0 if there is none.
  std::size_t bytes() const;
};

// For the checked scale_inv of an operand with `rows` rows of K (kRowGroups or kBlocks).
CublasltScaleInv cublaslt_scale_inv(const Tensor& scale_inv, ScaleGranularity scale, std::int64_t rows, std::int64_t k);

// The size of both operands' copies, for a checked call; 0 without scale_inv of groups.
std::size_t cublaslt_scale_inv_bytes(const GemmSpec& spec, const GemmTensors& tensors, const MatmulSize& size);

}  // namespace ingot
