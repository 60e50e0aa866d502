// The number of blocks that templates/gemm/stream_k.cuh launches, for cost models; also for sizes beyond 32 bits.
#pragma once

#include <algorithm>
#include <cmath>

namespace ingot {

// Blocks to launch for `tiles` tiles of `units` K-steps when `at_once` fit on the GPU.
inline double estimate_stream_k_blocks(double tiles, double units, double at_once) {
  const double shortest = std::ceil(std::sqrt(units));
  return std::min(at_once, tiles * std::max(1.0, std::floor(units / shortest)));
}

}  // namespace ingot
