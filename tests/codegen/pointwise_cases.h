// Random expressions and points to evaluate them at.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "ingot/codegen/pointwise.h"

namespace ingot::test {

using Random = std::mt19937_64;

inline int below(Random& random, int end) { return static_cast<int>(random() % static_cast<std::uint64_t>(end)); }

// Uniform in [low, high).
inline double between(Random& random, double low, double high) {
  return low + (high - low) * (static_cast<double>(random() >> 11U) * 0x1p-53);
}

// The text of an expression of at most `depth` levels, with everything that the grammar has: more parentheses than
// needed, signs, powers, every kind of input, and calls of the functions given.
inline std::string random_text(Random& random, int depth, const std::vector<std::string>& one_argument,
                               const std::vector<std::string>& two_arguments) {
  const auto part = [&] { return random_text(random, depth - 1, one_argument, two_arguments); };
  const auto pick = [&](const std::vector<std::string>& from) {
    return from[static_cast<std::size_t>(below(random, static_cast<int>(from.size())))];
  };
  if (depth == 0 || below(random, 8) == 0) {
    static const std::vector<std::string> kNames{"x", "x", "x", "gate", "residual", "bias[col]", "mean[row]"};
    if (below(random, 3) != 0) return pick(kNames);
    static const std::vector<std::string> kNumbers{"0", "1", "2", "0.5", "3.75", "1e-3", ".25"};
    return pick(kNumbers);
  }
  switch (below(random, 9)) {
    case 0: return part() + " + " + part();
    case 1: return part() + "-" + part();
    case 2: return "(" + part() + ") * " + part();
    case 3: return part() + " / (" + part() + ")";
    case 4: return "-" + part();
    case 5: return fmt::format("({})^{}", part(), below(random, 5));
    case 6: return pick(two_arguments) + "(" + part() + "," + part() + ")";
    default: return pick(one_argument) + "(" + part() + ")";
  }
}

}  // namespace ingot::test
