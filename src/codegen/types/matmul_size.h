// The size of a matmul, and the GPU that it runs on.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ingot/codegen/types/target.h"

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

struct MatmulDevice {
  Target target{};
  int multiprocessors = 0;
  bool compiles = true;  // can kernels be compiled here? If not, only those in the store can run.
};

// Combines a hash with one more value, or with a size.
inline std::size_t hash_with(std::size_t hash, std::uint64_t value) {
  const std::uint64_t mixed = (std::uint64_t{hash} ^ value) * 0x9e3779b97f4a7c15U;
  return static_cast<std::size_t>(mixed ^ mixed >> 32U);
}
inline std::size_t hash_with(std::size_t hash, const MatmulSize& size) {
  for (const std::int64_t value : {size.m, size.n, size.k}) hash = hash_with(hash, static_cast<std::uint64_t>(value));
  return hash;
}

}  // namespace ingot
