#pragma once

#include <cstdint>

namespace ingot {

// Where the scales of FP8 codes come from. dynamic: the maxima of what is cast. given: the caller (static scaling, or
// delayed scaling from earlier maxima); the kernel then records the maxima, for the next scales.
enum class ScaleSource : std::uint8_t { dynamic, given };

}  // namespace ingot
