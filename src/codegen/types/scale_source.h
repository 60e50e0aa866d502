// Where the scales of FP8 codes come from.
#pragma once

#include <cstdint>

namespace ingot {

// dynamic: from the maxima of the values that are cast. given: from the caller (static scaling, or delayed scaling with
// earlier maxima); the kernel then records the maxima, for the next scales.
enum class ScaleSource : std::uint8_t { dynamic, given };

}  // namespace ingot
