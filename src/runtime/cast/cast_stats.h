// CastStats, which Backend::cast_stats() writes: how a cast changed its values, or, without codes, what the values are.
#pragma once

#include <cstdint>

namespace ingot {

// Compares the values x with the code * factor that each was cast to. Sums are in f64, over the elements for which both
// are finite; without codes, over all finite x. All 0 for an empty tensor.
struct CastStats {
  std::uint64_t nan_count = 0;
  std::uint64_t inf_count = 0;
  std::uint64_t saturated = 0;  // finite x beyond the format: |x| > FP8_MAX * factor, give or take rounding
  std::uint64_t flushed = 0;    // finite x != 0 whose code is 0
  std::uint64_t spoiled = 0;  // finite x whose code or factor is not, as where an Inf is within the extent of its scale
  double sum_of_squares = 0;  // x^2
  double sum_of_squared_errors = 0;  // (x - code * factor)^2
  float amax = 0;                    // max |x|; NaN where there is one
  float smallest = 0;                // the smallest |x| that is not 0
  float smallest_factor = 0;         // 0 without codes
  float largest_factor = 0;          // NaN where there is one
  bool operator==(const CastStats&) const = default;
};

// The length of the f32 vector that holds its bytes.
inline constexpr std::int64_t kCastStatsWords = sizeof(CastStats) / 4;

}  // namespace ingot
