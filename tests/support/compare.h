// Comparisons that say where and how two matrices differ: the first index, its coordinate and both values. An empty
// text means that they agree. NaN agrees only with NaN, never with a number.
#pragma once

#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "support/guarded_matrix.h"

namespace ingot::test {

// A result as it should be, in float64, and how far from it each element may be.
struct Expected {
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::vector<double> values{};
  std::vector<double> bounds{};

  std::size_t index(std::int64_t r, std::int64_t c) const { return static_cast<std::size_t>(r * cols + c); }
};

std::string show(const GuardedMatrix& matrix, std::int64_t r, std::int64_t c);

// Describes the elements for which agrees(r, c) is false; show_expected(r, c) is the text of what they should be.
template <class Agrees, class ShowExpected>
std::string difference(const std::string& what, std::int64_t rows, std::int64_t cols, const GuardedMatrix& actual,
                       const Agrees& agrees, const ShowExpected& show_expected) {
  if (rows != actual.rows() || cols != actual.cols()) {
    return fmt::format("{}: expected {} x {} elements, got {} x {}", what, rows, cols, actual.rows(), actual.cols());
  }
  std::int64_t count = 0;
  std::string first;
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < cols; ++c) {
      if (agrees(r, c)) continue;
      if (count++ != 0) continue;
      first = fmt::format("{}: first at index {} (row {}, col {}): expected {}, got {}", what, r * cols + c, r, c,
                          show_expected(r, c), show(actual, r, c));
    }
  }
  return count == 0 ? first : fmt::format("{}; {} of {} elements differ", first, count, rows * cols);
}

// Requires the same bits; but in high-precision results any NaN matches any NaN, because IEEE 754 leaves its sign and
// payload to the processor.
std::string bit_difference(const std::string& what, const GuardedMatrix& expected, const GuardedMatrix& actual);

// Requires each element to be within its bound.
std::string value_difference(const std::string& what, const Expected& expected, const GuardedMatrix& actual);

// Requires ||actual - expected|| <= tolerance * ||expected|| (Frobenius), and NaN and Inf in the same positions.
std::string norm_difference(const std::string& what, const Expected& expected, const GuardedMatrix& actual,
                            double tolerance);

}  // namespace ingot::test
