// Division of sizes, rounded up, for every size that there is: a + b - 1 (templates/platform.cuh) is only for sizes
// that have been checked.
#pragma once

#include <cstdint>

namespace ingot {

// Requires a >= 0 and b > 0.
constexpr std::int64_t divided_up(std::int64_t a, std::int64_t b) { return a / b + (a % b == 0 ? 0 : 1); }

}  // namespace ingot
