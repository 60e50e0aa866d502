// Converts a GemmTiling to the Sm90Tiling of templates/gemm/gemm_sm90_tiling.cuh.
#pragma once

#include "ingot/codegen/gemm/gemm_tiling.h"

#include "gemm/gemm_sm90_tiling.cuh"

namespace ingot {

// The numbers of the tiling must not be negative.
inline Sm90Tiling sm90_tiling(const GemmTiling& t) {
  const auto unsigned_of = [](int value) { return static_cast<u32>(value); };
  return {.m = unsigned_of(t.m),
          .n = unsigned_of(t.n),
          .cluster_m = unsigned_of(t.cluster_m),
          .cluster_n = unsigned_of(t.cluster_n),
          .stages = unsigned_of(t.stages),
          .pingpong = t.pingpong,
          .stream_k = t.stream_k};
}

}  // namespace ingot
