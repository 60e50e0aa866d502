// A grouped GEMM on Hopper's tensor cores: gemm_sm90 for the rows of many experts, in one launch.
//   out[rows of expert e, N] = scale_inv_a * scale_inv_b[e] * sum_k a(m, k) b(e, n, k) + bias[e][N]
// a's rows are those of expert 0, then of expert 1, and so on; rows beyond the last expert's are not written. Where
// experts end is read from device memory, so that no copy to the host is needed and a captured graph takes other ends
// in each replay. Experts may have no rows, and any number of them.
//
// Along K (gemm_sm90_along_k.cuh) it multiplies columns of many experts, as for the gradients of their weights:
//   out[e][M, N] = scale_inv_a[e] * scale_inv_b[e] * sum over the k of expert e of a(m, k) b(n, k) + beta * c[e][M, N]
// An expert without columns has sums of zero. With scale_inv of groups its columns are in slots (expert_slots.cuh).
//
// Schedule: gemm_sm90's. Each block first counts the tiles of all experts, which takes a microsecond of 512 of them,
// and then takes tiles round-robin, those of one expert after those of another (gemm_sm90_experts.cuh). The mainloop is
// gemm_sm90's; so is the epilogue store, but for rows of other experts, which it leaves alone.
#pragma once

#include "gemm/gemm_sm90.cuh"
#include "gemm/gemm_sm90_grouped_walk.cuh"

namespace ingot {

// Requires M, N > 0 and, unless along K, K > 0: without a K the host gives it operands of one column, which are zero.
template <class A, class B, class Out, GemmSm90Config C, class Epi = PlainEpilogue>
INGOT_KERNEL void INGOT_LAUNCH_BOUNDS(kSm90ThreadsOf<C>, 1)
    gemm_sm90_grouped([[maybe_unused]] const __grid_constant__ Sm90GroupedParams p) {
  static_assert(sm90_is_valid<A, B, C>() && C.experts);
#if INGOT_ON_DEVICE
  sm90_run<A, B, Out, C, Epi>(p);
#endif
}

}  // namespace ingot
