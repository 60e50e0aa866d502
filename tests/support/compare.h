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

// A result as it should be, in float64, and how far from it each element may lie.
struct Expected {
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::vector<double> values{};
  std::vector<double> bounds{};

  std::size_t index(std::int64_t r, std::int64_t c) const { return static_cast<std::size_t>(r * cols + c); }
};

inline std::string show(const GuardedMatrix& matrix, std::int64_t r, std::int64_t c) {
  return fmt::format("{:#0{}x} ({:.9g})", matrix.bits(r, c), 2 + 2 * size_of(matrix.dtype()), matrix.value(r, c));
}

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
inline std::string bit_difference(const std::string& what, const GuardedMatrix& expected, const GuardedMatrix& actual) {
  if (expected.dtype() != actual.dtype()) {
    return fmt::format("{}: expected {}, got {}", what, name(expected.dtype()), name(actual.dtype()));
  }
  bool same = expected.rows() == actual.rows() && expected.cols() == actual.cols();
  for (std::int64_t r = 0; same && r < expected.rows() && expected.cols() != 0; ++r) {
    same = std::memcmp(expected.element(r, 0), actual.element(r, 0), expected.row_bytes()) == 0;
  }
  if (same) return {};
  const bool any_nan = !is_fp8(expected.dtype());
  return difference(
      what, expected.rows(), expected.cols(), actual,
      [&](std::int64_t r, std::int64_t c) {
        return expected.bits(r, c) == actual.bits(r, c) ||
               (any_nan && std::isnan(expected.value(r, c)) && std::isnan(actual.value(r, c)));
      },
      [&](std::int64_t r, std::int64_t c) { return show(expected, r, c); });
}

// Requires each element to lie within its bound.
inline std::string value_difference(const std::string& what, const Expected& expected, const GuardedMatrix& actual) {
  return difference(
      what, expected.rows, expected.cols, actual,
      [&](std::int64_t r, std::int64_t c) {
        const double e = expected.values[expected.index(r, c)];
        const double a = actual.value(r, c);
        if (std::isnan(e) || std::isnan(a)) return std::isnan(e) && std::isnan(a);
        return e == a || std::fabs(e - a) <= expected.bounds[expected.index(r, c)];
      },
      [&](std::int64_t r, std::int64_t c) {
        return fmt::format("{:.9g} +- {:.3g}", expected.values[expected.index(r, c)],
                           expected.bounds[expected.index(r, c)]);
      });
}

// Requires ||actual - expected|| <= tolerance * ||expected|| (Frobenius), and NaN and Inf in the same positions.
inline std::string norm_difference(const std::string& what, const Expected& expected, const GuardedMatrix& actual,
                                   double tolerance) {
  double error = 0;
  double norm = 0;
  const std::string odd = difference(
      what, expected.rows, expected.cols, actual,
      [&](std::int64_t r, std::int64_t c) {
        const double e = expected.values[expected.index(r, c)];
        const double a = actual.value(r, c);
        if (!std::isfinite(e) || !std::isfinite(a)) return e == a || (std::isnan(e) && std::isnan(a));
        error += (a - e) * (a - e);
        norm += e * e;
        return true;
      },
      [&](std::int64_t r, std::int64_t c) { return fmt::format("{:.9g}", expected.values[expected.index(r, c)]); });
  if (!odd.empty()) return odd;
  if (std::sqrt(error) <= tolerance * std::sqrt(norm)) return {};
  return fmt::format("{}: error {:.3g} relative to the norm, but at most {:.3g} is allowed", what,
                     std::sqrt(error / norm), tolerance);
}

}  // namespace ingot::test
