// Two GEMMs that need nothing of each other, in one launch of gemm_sm90's blocks: those of a layer's two gradients,
// when neither has tiles for all multiprocessors. They begin and end together, where two launches would do it twice.
//
// The grid has two rows of blocks. Each row computes one of the GEMMs as a launch of gemm_sm90 with as many blocks
// would, to the same bits. So each GEMM has half of the multiprocessors, which suits those of two gradients: both have
// as many products.
#pragma once

#include "gemm/gemm_sm90.cuh"

namespace ingot {

// The template arguments of one of the two.
template <class OperandA, class OperandB, class Output, GemmSm90Config Config, class Epilogue = PlainEpilogue>
struct Sm90Gemm {
  using A = OperandA;
  using B = OperandB;
  using Out = Output;
  using Epi = Epilogue;
  static constexpr GemmSm90Config kConfig = Config;
};

struct Sm90PairParams {
  Sm90GemmParams gemms[2];
};

#if INGOT_ON_DEVICE
template <class Gemm>
INGOT_DEVICE void sm90_run(const Sm90GemmParams& p) {
  sm90_run<typename Gemm::A, typename Gemm::B, typename Gemm::Out, Gemm::kConfig, typename Gemm::Epi>(p);
}
#endif

// Tilings without clusters or stream-K, so that blocks of a row need no more than their own place in it; and of as many
// threads.
template <class Gemm>
INGOT_HOST_DEVICE constexpr bool sm90_pairs() {
  constexpr Sm90Tiling T = Gemm::kConfig.tiling;
  return sm90_is_valid<typename Gemm::A, typename Gemm::B, Gemm::kConfig>() && sm90_cluster_size(T) == 1 &&
         !T.stream_k && sm90_consumers(T) == 2;
}

// Requires of each what gemm_sm90 does.
template <class First, class Second>
INGOT_KERNEL void INGOT_LAUNCH_BOUNDS(kSm90ThreadsOf<First::kConfig>, 1)
    gemm_sm90_pair([[maybe_unused]] const __grid_constant__ Sm90PairParams p) {
  static_assert(sm90_pairs<First>() && sm90_pairs<Second>());
#if INGOT_ON_DEVICE
  if constexpr (is_same<First, Second>) {
    sm90_run<First>(p.gemms[blockIdx.y]);
  } else if (blockIdx.y == 0) {
    sm90_run<First>(p.gemms[0]);
  } else {
    sm90_run<Second>(p.gemms[1]);
  }
#endif
}

}  // namespace ingot
