#include "support/compare.h"

namespace ingot::test {

std::string show(const GuardedMatrix& matrix, std::int64_t r, std::int64_t c) {
  return fmt::format("{:#0{}x} ({:.9g})", matrix.bits(r, c), 2 + 2 * size_of(matrix.dtype()), matrix.value(r, c));
}

std::string bit_difference(const std::string& what, const GuardedMatrix& expected, const GuardedMatrix& actual) {
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

std::string value_difference(const std::string& what, const Expected& expected, const GuardedMatrix& actual) {
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

std::string norm_difference(const std::string& what, const Expected& expected, const GuardedMatrix& actual,
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
