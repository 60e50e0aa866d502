// The size of a matmul, and arithmetic on such sizes.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace ingot {

// out[m, n] = sum over k of products of two operands.
struct MatmulSize {
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
  bool operator==(const MatmulSize&) const = default;
};

// How many products the matmul adds up, as a double, which no size overflows.
constexpr double products_of(const MatmulSize& size) {
  return static_cast<double>(size.m) * static_cast<double>(size.n) * static_cast<double>(size.k);
}

// Combines a hash with one more value, or with a size.
inline std::size_t hash_with(std::size_t hash, std::uint64_t value) {
  const std::uint64_t mixed = (std::uint64_t{hash} ^ value) * 0x9e3779b97f4a7c15U;
  return static_cast<std::size_t>(mixed ^ mixed >> 32U);
}
inline std::size_t hash_with(std::size_t hash, const MatmulSize& size) {
  for (const std::int64_t value : {size.m, size.n, size.k}) hash = hash_with(hash, static_cast<std::uint64_t>(value));
  return hash;
}

// Rounded up, for all a >= 0 and b > 0: a + b - 1 (templates/platform.cuh) is only for sizes that have been checked.
constexpr std::int64_t divided_up(std::int64_t a, std::int64_t b) { return a / b + (a % b == 0 ? 0 : 1); }

// For cost models, also of sizes beyond 32 bits: the blocks that templates/gemm/stream_k.cuh launches for `tiles` tiles
// of `units` K-steps when `at_once` fit on the GPU.
inline double estimate_stream_k_blocks(double tiles, double units, double at_once) {
  const double shortest = std::ceil(std::sqrt(units));
  return std::min(at_once, tiles * std::max(1.0, std::floor(units / shortest)));
}

}  // namespace ingot
