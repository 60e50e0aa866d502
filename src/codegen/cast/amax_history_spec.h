// What delayed scaling does once per step: maxima go into their histories, and scales are made of those.
#pragma once

#include <array>
#include <cstdint>

namespace ingot {

// Whose scale: that of the largest amax of the history, or that of the newest one.
enum class AmaxReduction : std::uint8_t { max, most_recent };
inline constexpr std::array kAmaxReductions{AmaxReduction::max, AmaxReduction::most_recent};

// Of each of n slots, with a history of any length >= 1, the newest amax first:
//   history[i] is rolled by one place, its oldest amax dropped; history[i][0] = |amax[i]|; amax[i] = 0
//   largest = max of history[i], or history[i][0]; NaN is kept
//   scale[i] = f32(FP8_MAX / max(f64(largest), 1e-12)), rounded down to a power of two where pow2[i] is not 0;
//   where largest is 0, nothing is known of the data (it was not cast, or is all zeros), and scale[i] stays as it is
// The formula is that of dynamic scales, to the bit; FP8_MAX is each slot's own.
struct AmaxHistorySpec {
  AmaxReduction reduction = AmaxReduction::max;
  bool operator==(const AmaxHistorySpec&) const = default;
};

}  // namespace ingot
