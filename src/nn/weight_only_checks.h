// What WeightOnlyLinear asks of numbers that come from elsewhere: a WeightOnlyState, or a file of one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "ingot/codegen/dtype.h"

namespace ingot {

// Why there is no weight [n, k]; empty if there may be one. Sizes that pass have at most 2^40 elements, so that no
// number of bytes overflows.
std::string weight_size_fault(std::int64_t n, std::int64_t k);

// Why these are no packed bytes of a weight [n, k] (packed_weight_bytes() of them) as pack_weight() makes them: behind
// the codes there is NaN for a row with a NaN code and 1 for any other, and the codes of the padding are 0. Kernels
// rely on it. Empty if they are.
std::string packed_weight_fault(Dtype dtype, std::int64_t n, std::int64_t k, std::span<const std::byte> packed);

}  // namespace ingot
