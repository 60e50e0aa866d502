// Scales as checkpoints store them, of f32, bf16, f16 or e8m0fnu, read on the host.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "ingot/codegen/types/dtype.h"

namespace ingot {

// The scales' values, which f32 holds exactly. `bytes` has a whole number of them.
std::vector<float> scale_values(Dtype dtype, std::span<const std::byte> bytes);

}  // namespace ingot
