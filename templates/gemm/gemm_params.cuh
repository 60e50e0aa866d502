// The parameters of the GEMM kernels that take any stride: all of gemm_simt's, and most of gemm_mma's. (gemm_sm90 has
// tensor maps instead.)
#pragma once

#include "gemm/gemm_epilogue.cuh"
#include "platform.cuh"

namespace ingot {

inline constexpr u32 kGemmGroup = 128;  // K per group, where groups of K have their own scale_inv

struct GemmParams {
  const void* a;
  const void* b;
  const float* factor_a;  // null: none (high-precision operands)
  const float* factor_b;
  const void* bias;  // null: none
  void* out;
  i64 m, n, k;
  i64 a_stride_m, a_stride_k;  // elements: a(m, k) is at m * a_stride_m + k * a_stride_k
  i64 b_stride_n, b_stride_k;
  i64 out_stride;
  i64 factor_a_stride, factor_b_stride;              // 0: one for all; otherwise from one row's scale_inv to the next
  i64 factor_a_group_stride, factor_b_group_stride;  // 0: no groups of K; otherwise from one group's to the next
  i64 factor_b_rows;                                 // with groups: rows of b that share scale_inv
  EpilogueParams epilogue;
};

}  // namespace ingot
