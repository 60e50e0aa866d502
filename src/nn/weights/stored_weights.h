// Checks of weights that come from outside, in a WeightOnlyState or a file, before WeightOnlyLinear uses them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "ingot/codegen/dequant/dequant_spec.h"
#include "ingot/codegen/types/dtype.h"

namespace ingot {

// Says why a weight [n, k] is impossible; empty if it is possible. Sizes that pass have at most 2^40 elements, so that
// no number of bytes overflows.
std::string weight_size_fault(std::int64_t n, std::int64_t k);

// A packed weight [n, k] on the host: `bytes` has packed_weight_bytes(dtype, n, k) bytes.
struct PackedWeight {
  Dtype dtype;
  WeightLayout layout;
  std::int64_t n, k;
  std::span<const std::byte> bytes;
};

// Says why these bytes are not as pack_weight() makes them; empty if they are. After the codes, pack_weight() writes
// NaN for a row that has a NaN code and 1 for any other row, and codes of the padding are 0. Kernels rely on both.
std::string packed_weight_fault(const PackedWeight& packed);

// Scales as checkpoints store them, of f32, bf16, f16 or e8m0fnu, read on the host.

// The scales' values, which f32 holds exactly. `bytes` has a whole number of them.
std::vector<float> scale_values(Dtype dtype, std::span<const std::byte> bytes);

}  // namespace ingot
