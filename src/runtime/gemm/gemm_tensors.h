// The tensors of a GEMM, and of the relayout of its operands. Backend (backend.h) has the calls.
#pragma once

#include <array>

#include "ingot/codegen/pointwise/pointwise.h"
#include "ingot/runtime/tensor.h"

namespace ingot {

// a, b as GemmSpec's layouts say; factor_a, factor_b: f32 vectors of scale_count elements where the operand is FP8, of
// groups row by row, as casts of the operand write them. Factors of groups may also be a matrix, of any row stride,
// with a row for each group of K: f32[ceil(K / 128), rows of the operand], or with 128x128 blocks [ceil(K / 128),
// ceil(rows / 128)]. That is how a cast of the operand's transpose writes them (128x1 groups, 128x128 blocks), so that
// its transposed codes and their factors, as such a matrix, are an operand as they are.
// bias: [N] where the spec has one; out[M, N]. Of an epilogue (GemmEpilogue): c[M, N], which may be `out` itself, with
// the same row stride, and may not overlap it otherwise, and beta: where that is 0, c is not read, so that it may hold
// anything, NaN too; inputs[i], which is that of pointwise.inputs()[i]: a matrix [M, N] or a vector [1, N] of
// epilogue_dtype(), or, for [row], f32[1, M]; preactivation[M, N]; amax (f32[1], raised to the largest value: clear it
// before the first call). Of an FP8 output: scale (f32[1], read) and factor (f32[1], written: 1 / scale).
struct GemmTensors {
  Tensor a;
  Tensor b;
  Tensor factor_a{};
  Tensor factor_b{};
  Tensor bias{};
  Tensor out;
  Tensor c{};
  float beta = 1.0F;
  std::array<Tensor, kMaxPointwiseInputs> inputs{};
  Tensor preactivation{};
  Tensor amax{};
  Tensor scale{};
  Tensor factor{};
};

// Codes of any FP8 dtype: input[rows, cols] to output[rows, cols], or [cols, rows] where spec.transposed. For operands
// that lie otherwise than a tensor-core GEMM reads them; gemm() does it itself where that is faster.
struct RelayoutTensors {
  Tensor input;
  Tensor output;
};

}  // namespace ingot
