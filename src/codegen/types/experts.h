// What all operations on the rows of a mixture of experts have in common.
#pragma once

#include <cstdint>

namespace ingot {

// The most experts of one GEMM or cast: a block keeps where they end in its shared memory.
inline constexpr int kMostExperts = 512;

}  // namespace ingot
