// What WeightOnlyLinear asks of numbers that come from elsewhere: a WeightOnlyState, or a file of one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "ingot/codegen/dequant/dequant_spec.h"
#include "ingot/codegen/types/dtype.h"

namespace ingot {

// Why there is no weight [n, k]; empty if there may be one. Sizes that pass have at most 2^40 elements, so that no
// number of bytes overflows.
std::string weight_size_fault(std::int64_t n, std::int64_t k);

// bytes: packed_weight_bytes(dtype, n, k) of them.
struct PackedWeight {
  Dtype dtype;
  WeightLayout layout;
  std::int64_t n, k;
  std::span<const std::byte> bytes;
};

// Why these are no packed bytes as pack_weight() makes them: behind the codes there is NaN for a row with a NaN code
// and 1 for any other, and the codes of the padding are 0. Kernels rely on it. Empty if they are.
std::string packed_weight_fault(const PackedWeight& packed);

}  // namespace ingot
