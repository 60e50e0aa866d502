// The tensors of a GEMM and of a grouped GEMM, the sizes that follow from them, and the tensors of the relayout of
// operands. Backend (backend.h) has the calls.
#pragma once

#include <array>
#include <cstdint>
#include "ingot/codegen/gemm/gemm_spec.h"
#include "ingot/codegen/gemm/grouped_gemm_spec.h"
#include "ingot/codegen/pointwise/pointwise.h"
#include "ingot/codegen/types/matmul_size.h"
#include "ingot/runtime/cast/cast_tensors.h"
#include "ingot/runtime/core/expert_ends.h"
#include "ingot/runtime/core/tensor.h"

namespace ingot {

// A tensor that the spec does not ask for stays a default Tensor.
//
// The scale_inv of an FP8 operand (scale_inv_a, scale_inv_b) are an f32 vector of scale_count elements, those of groups
// row by row, as a cast of the operand writes them. Those of groups may also be a matrix with a row for each group of K
// and any row stride: f32[ceil(K / 128), rows of the operand] or, with 128x128 blocks, f32[ceil(K / 128), ceil(rows /
// 128)]. A cast of the operand's transpose (with 128x1 groups or 128x128 blocks) writes them in this order, so its
// transposed codes and their scale_inv can be passed as they are.
struct GemmTensors {
  Tensor a;  // a and b are stored as GemmSpec's layouts say
  Tensor b;
  Tensor scale_inv_a{};
  Tensor scale_inv_b{};
  Tensor bias{};  // [N]
  Tensor out;     // [M, N]

  // For an epilogue (GemmEpilogue). c may be `out` itself, with the same row stride, but may not overlap it otherwise.
  // If beta is 0, c is not read and may hold anything, even NaN.
  Tensor c{};  // [M, N]
  float beta = 1.0F;
  // In the order of pointwise.inputs(): a matrix [M, N] or a vector [1, N] of epilogue_dtype(), or f32[1, M] for [row].
  std::array<Tensor, kMaxPointwiseInputs> inputs{};
  Tensor preactivation{};  // [M, N]
  Tensor amax{};           // f32[1], raised to the largest value: clear it before the first call

  // For an FP8 output.
  Tensor scale{};      // f32[1], read
  Tensor scale_inv{};  // f32[1], written: 1 / scale
};

// One of the GEMMs of Backend::gemm_pair().
struct GemmWork {
  GemmSpec spec{};
  GemmTensors tensors{};
};

// Expert e has these rows of a and of out, and rows e * N to (e + 1) * N of b. Rows of out that no expert has are not
// written.
//
// scale_inv of FP8 operands are as in GemmTensors: of a those of a matrix [M, K], or tensorwise one for each expert; of
// b one for each expert, one for each of its experts * N rows, or those of groups or blocks of the first expert, then
// of the next, and so on. Each expert begins with a block of its own: with 128 x 128 blocks it has ceil(N / 128) rows
// of them. Those of blocks or groups may also be a matrix with a row for each group of K of the first expert, then of
// the next, and so on: f32[experts * ceil(K / 128), ceil(N / 128)] or f32[experts * ceil(K / 128), N], any row stride.
// A cast of stacked matrices writes them so of transposed codes.
//
// Along K (GroupedGemmSpec::along_k), b is [N, K] and out is [experts * M, N], expert e's in rows e * M to (e + 1) * M;
// all of out is written. scale_inv of a are one for all or one for each expert or, rowwise, those of a's M rows for all
// or for each expert, f32[experts * M]; of b likewise with N. With those for all, an expert's NaN or Inf reaches the
// others through the cast's maxima. Those of 1 x 128 groups are as in GemmTensors, and a and b are then in slots, as a
// cast of experts' rows writes transposed codes and their scale_inv: K = 128 * expert_slots(rows, experts), for all
// rows of which K is the transpose, and ends are of these rows. An expert without rows has a slot of zeros.
struct GroupedGemmTensors {
  Tensor a;  // [M, K]
  Tensor b;  // [experts * N, K]
  ExpertEnds ends;
  Tensor scale_inv_a{};
  Tensor scale_inv_b{};
  Tensor bias{};  // [experts * N] of bias_dtype(): each expert's, one after the other
  Tensor out;     // [M, N]
  Tensor c{};     // as GemmTensors has it, for an epilogue that adds it; of out's shape
  float beta = 1.0F;
};

// Copies codes of any FP8 dtype from input[rows, cols] to output[rows, cols], or to output[cols, rows] if
// spec.transposed. It brings operands into the order in which tensor-core GEMMs read them; gemm() does so by itself
// where that is faster.
struct RelayoutTensors {
  Tensor input;
  Tensor output;
  // How many matrices of one size stand one after the other in both, each of which is transposed by itself: input
  // [matrices * rows, cols], output [matrices * cols, rows].
  std::int64_t matrices = 1;
};

// K of an operand; and its other extent, which is M for a and N for b.
inline std::int64_t extent_k(const Tensor& operand, Layout layout) {
  return layout == Layout::k_major ? operand.cols : operand.rows;
}
inline std::int64_t extent_mn(const Tensor& operand, Layout layout) {
  return layout == Layout::k_major ? operand.rows : operand.cols;
}

// The tensors must have been checked (gemm_operations.h).
inline MatmulSize gemm_size(const GemmSpec& spec, const GemmTensors& tensors) {
  return {.m = extent_mn(tensors.a, spec.layout_a),
          .n = extent_mn(tensors.b, spec.layout_b),
          .k = extent_k(tensors.a, spec.layout_a)};
}
// M of all experts, N of one; along K, K of all experts.
inline MatmulSize gemm_size(const GroupedGemmSpec& /*spec*/, const GroupedGemmTensors& tensors) {
  return {.m = tensors.a.rows, .n = tensors.out.cols, .k = tensors.a.cols};
}

}  // namespace ingot
