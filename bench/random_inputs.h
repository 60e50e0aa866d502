// Fills the inputs of an operation with random data (runtime/measure/random_data.h).
#pragma once

#include <cstdint>

#include "ingot/runtime/measure/random_data.h"
#include "operation.h"

namespace ingot::bench {

// Fills all inputs, and the outputs that start from a value.
void fill(RandomData& random, const Placed& placed, std::uint64_t seed);

}  // namespace ingot::bench
