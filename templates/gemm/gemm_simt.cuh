// out[M, N] = scale_inv_a * scale_inv_b * sum_k a(m, k) b(n, k) + bias on the ordinary f32 units, followed by the
// epilogue (gemm_epilogue.cuh): any shape, stride and pair of dtypes. It takes what no tensor-core kernel takes.
//
// Each output is one chain in ascending k from 0: sum = sum + a * b, with the product rounded to f32, then the sum;
// then ((sum * scale_inv_a) * scale_inv_b) + bias with each step rounded to f32, and the epilogue. These are the bits
// of the CPU reference. With scale_inv of groups of 128 of K, each group is such a chain, and total = total + sum *
// (scale_inv_a * scale_inv_b), each step rounded, then + bias. If every product is exact (FP8, f16), product and sum
// are one fused multiply-add. A block computes 64 x 64 outputs, a thread 4 x 4; shared memory holds 16 of K at a time,
// decoded to f32.
#pragma once

#include "gemm/gemm_epilogue.cuh"
#include "gemm/gemm_params.cuh"
#include "memory.cuh"
#include "numerics.cuh"
#include "platform.cuh"

namespace ingot {

struct GemmSimtLaunch {
  static constexpr u32 kThreads = 256;
  static constexpr i64 kTile = 64;  // outputs, in both directions
  INGOT_HOST_DEVICE static constexpr i64 grid(i64 m, i64 n) { return ceil_div(m, kTile) * ceil_div(n, kTile); }
};

inline constexpr u32 kGemmSimtDepth = 16;                         // K per step
inline constexpr u32 kGemmSimtPitch = GemmSimtLaunch::kTile + 4;  // rows stay 16-byte aligned, in different banks

// Do products of two such operands always fit in f32, without rounding and without underflow?
template <class T>
inline constexpr bool kNarrow = Fp8Format<T> || is_same<T, f16>;

// staged[k][i] = operand(first + i, first_k + k), or 0 outside. Neighbouring threads take neighbouring memory.
template <class T>
INGOT_DEVICE void stage_operand(float (&staged)[kGemmSimtDepth][kGemmSimtPitch], const T* operand, i64 first,
                                i64 extent, i64 first_k, i64 depth, i64 stride, i64 stride_k) {
  INGOT_UNROLL
  for (u32 step = 0; step < GemmSimtLaunch::kTile * kGemmSimtDepth / GemmSimtLaunch::kThreads; ++step) {
    const u32 index = step * GemmSimtLaunch::kThreads + threadIdx.x;
    const u32 i = stride_k == 1 ? index / kGemmSimtDepth : index % GemmSimtLaunch::kTile;
    const u32 k = stride_k == 1 ? index % kGemmSimtDepth : index / GemmSimtLaunch::kTile;
    const bool inside = first + i < extent && first_k + k < depth;
    staged[k][i] = inside ? to_float(operand[(first + i) * stride + (first_k + k) * stride_k]) : 0.0F;
  }
}

// Adds a group's sums, times its scale_inv, to the totals.
template <u32 Each>
INGOT_DEVICE void add_group(const GemmParams& p, float (&totals)[Each][Each], float (&sums)[Each][Each], i64 m, i64 n,
                            i64 group) {
  INGOT_UNROLL
  for (u32 i = 0; i < Each; ++i) {
    const i64 at_a = (m + i) * p.factor_a_stride + group * p.factor_a_group_stride;
    const float factor_a = m + i < p.m ? p.factor_a[at_a] : 0.0F;
    INGOT_UNROLL
    for (u32 j = 0; j < Each; ++j) {
      const i64 at_b = (n + j) / p.factor_b_rows * p.factor_b_stride + group * p.factor_b_group_stride;
      const float factor_b = n + j < p.n ? p.factor_b[at_b] : 0.0F;
      totals[i][j] = totals[i][j] + sums[i][j] * (factor_a * factor_b);
      sums[i][j] = 0.0F;
    }
  }
}

// Adds a thread's products over `depth` staged k.
template <class A, class B, u32 Each>
INGOT_DEVICE void add_products(const float (&staged_a)[kGemmSimtDepth][kGemmSimtPitch],
                               const float (&staged_b)[kGemmSimtDepth][kGemmSimtPitch], u32 depth, u32 local_m,
                               u32 local_n, float (&sums)[Each][Each]) {
  INGOT_UNROLL_BY(4)
  for (u32 k = 0; k < depth; ++k) {
    INGOT_UNROLL
    for (u32 i = 0; i < Each; ++i) {
      INGOT_UNROLL
      for (u32 j = 0; j < Each; ++j) {
        if constexpr (kNarrow<A> && kNarrow<B>) {
          sums[i][j] = fused_multiply_add(staged_a[k][local_m + i], staged_b[k][local_n + j], sums[i][j]);
        } else {
          sums[i][j] = sums[i][j] + staged_a[k][local_m + i] * staged_b[k][local_n + j];
        }
      }
    }
  }
}

template <class A, class B, class Out, class Epi = PlainEpilogue>
INGOT_KERNEL void INGOT_LAUNCH_BOUNDS(GemmSimtLaunch::kThreads, 2) gemm_simt(const GemmParams p) {
  start_in_turn();
  write_output_factor<Out>(p.epilogue);
  using Launch = GemmSimtLaunch;
  using Bias = typename GemmBias<A, B, Out>::Type;
  constexpr u32 kEach = 4;                        // outputs per thread, in both directions
  constexpr u32 kAcross = Launch::kTile / kEach;  // threads along n
  alignas(16) __shared__ float staged_a[kGemmSimtDepth][kGemmSimtPitch];
  alignas(16) __shared__ float staged_b[kGemmSimtDepth][kGemmSimtPitch];

  const u32 tiles_across = static_cast<u32>(max_of(i64{1}, ceil_div(p.n, Launch::kTile)));
  const i64 first_m = blockIdx.x / tiles_across * Launch::kTile;
  const i64 first_n = blockIdx.x % tiles_across * Launch::kTile;
  const u32 local_m = threadIdx.x / kAcross * kEach;
  const u32 local_n = threadIdx.x % kAcross * kEach;

  const bool grouped = p.factor_a_group_stride != 0;
  float sums[kEach][kEach] = {};
  float totals[kEach][kEach] = {};
  INGOT_UNROLL_BY(1)
  for (i64 first_k = 0; first_k < p.k; first_k += kGemmSimtDepth) {
    stage_operand(staged_a, static_cast<const A*>(p.a), first_m, p.m, first_k, p.k, p.a_stride_m, p.a_stride_k);
    stage_operand(staged_b, static_cast<const B*>(p.b), first_n, p.n, first_k, p.k, p.b_stride_n, p.b_stride_k);
    __syncthreads();
    // Stop at the end of K: adding a zero product would turn a sum of -0 into +0.
    const u32 depth = static_cast<u32>(min_of(i64{kGemmSimtDepth}, p.k - first_k));
    add_products<A, B>(staged_a, staged_b, depth, local_m, local_n, sums);
    __syncthreads();
    const i64 next_k = first_k + kGemmSimtDepth;
    if (grouped && (next_k % kGemmGroup == 0 || next_k >= p.k)) {
      add_group(p, totals, sums, first_m + local_m, first_n + local_n, first_k / kGemmGroup);
    }
  }

  const float scale = Fp8Format<Out> ? *p.epilogue.scale : 1.0F;
  u32 largest = 0;
  INGOT_UNROLL
  for (u32 i = 0; i < kEach; ++i) {
    const i64 m = first_m + local_m + i;
    if (m >= p.m) continue;
    INGOT_UNROLL
    for (u32 j = 0; j < kEach; ++j) {
      const i64 n = first_n + local_n + j;
      if (n >= p.n) continue;
      float value = grouped ? totals[i][j] : sums[i][j];
      if (!grouped && p.factor_a != nullptr) value = value * p.factor_a[m * p.factor_a_stride];
      if (!grouped && p.factor_b != nullptr) value = value * p.factor_b[n * p.factor_b_stride];
      if (p.bias != nullptr) value = value + to_float(static_cast<const Bias*>(p.bias)[n]);
      value = Epi::value(p.epilogue, m, n, value);
      if constexpr (Epi::kAmax) largest = max_of(largest, gemm_amax_bits<Out>(value));
      static_cast<Out*>(p.out)[m * p.out_stride + n] = gemm_output<Out>(value, scale);
    }
  }
  if constexpr (Epi::kAmax) raise_epilogue_amax(p.epilogue, largest);
}

}  // namespace ingot
