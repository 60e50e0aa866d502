// A copy kernel, launched by Ingot: the cost of a call of the same size that moves the same bytes and does nothing
// else. The copy ceiling (ceiling.h) is the speed of copies so large that a launch and the first bytes cost nothing.
#pragma once

#include <cstdint>

#include "operation.h"

namespace ingot::bench {

// Reads half of rows * cols * bytes_per_element bytes and writes as many; up to 2 * cols bytes fewer where they are not
// whole rows of bf16.
Operation copy_operation(int bytes_per_element, std::int64_t rows, std::int64_t cols);

}  // namespace ingot::bench
