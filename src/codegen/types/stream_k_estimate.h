// templates/gemm/stream_k.cuh's count of blocks for cost models, which also take sizes that are not of 32 bits.
#pragma once

#include <algorithm>
#include <cmath>

namespace ingot {

// Of so many tiles, of so many units along K each (steps that count), where so many blocks run at once.
inline double estimate_stream_k_blocks(double tiles, double units, double at_once) {
  const double shortest = std::ceil(std::sqrt(units));
  return std::min(at_once, tiles * std::max(1.0, std::floor(units / shortest)));
}

}  // namespace ingot
