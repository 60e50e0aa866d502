// Deterministic inputs: element i depends only on the seed and i, so tensors may be filled in any order.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "cases.h"
#include "ingot/codegen/types/dtype.h"
#include "ingot/runtime/cpu/thread_pool.h"
#include "support/guarded_matrix.h"

#include "numerics.cuh"

namespace ingot::test {

// splitmix64.
std::uint64_t random_bits(std::uint64_t seed, std::uint64_t index);

// Uniform in [0, 1).
double random_unit(std::uint64_t seed, std::uint64_t index);

// Mean 0, variance 1, within +-3.5: the sum of four uniform numbers, which is bell-shaped enough for tests.
float random_normal(std::uint64_t seed, std::uint64_t index);

float random_value(Input input, Dtype dtype, std::uint64_t seed, std::uint64_t index);

// The bits of x in a dtype.
std::uint32_t encode_input(Dtype dtype, float x);

// The last element of normal input is larger than all others, so that an amax that misses the end of a tensor is wrong.
inline constexpr float kLastOfNormal = 5.0F;

void fill(GuardedMatrix& matrix, Input input, std::uint64_t seed, ThreadPool& pool);

}  // namespace ingot::test
