// References for the number formats, written from their definitions and not from templates/. SlowOracle is a table of
// values computed with ldexp in float64, and a search for the nearest of them. FastOracle, fast enough for 2^32 inputs,
// is a table filled by the slow one.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "formats.cuh"

namespace ingot::oracle {

struct Fp8Definition {
  const char* name;
  int exponent_bits;
  int mantissa_bits;
  int bias;
  bool fnuz;           // code 0x80 is the only NaN; no Inf, no -0
  bool ieee_specials;  // the top exponent is Inf and NaN; otherwise (fn) only all ones is NaN
};

template <class F>
constexpr Fp8Definition kDefinition{};
template <>
inline constexpr Fp8Definition kDefinition<e4m3fn>{"e4m3fn", 4, 3, 7, false, false};
template <>
inline constexpr Fp8Definition kDefinition<e5m2>{"e5m2", 5, 2, 15, false, true};
template <>
inline constexpr Fp8Definition kDefinition<e4m3fnuz>{"e4m3fnuz", 4, 3, 8, true, false};
template <>
inline constexpr Fp8Definition kDefinition<e5m2fnuz>{"e5m2fnuz", 5, 2, 16, true, false};

inline double value_of(const Fp8Definition& format, unsigned code) {
  const unsigned magnitude = code & 0x7f;
  const int exponent = static_cast<int>(magnitude >> format.mantissa_bits);
  const int mantissa = static_cast<int>(magnitude) - (exponent << format.mantissa_bits);
  const int top = (1 << format.exponent_bits) - 1;
  const double sign = code >= 0x80 ? -1.0 : 1.0;
  if (format.fnuz) {
    if (code == 0x80) return std::numeric_limits<double>::quiet_NaN();
  } else if (format.ieee_specials) {
    if (exponent == top && mantissa == 0) return sign * std::numeric_limits<double>::infinity();
    if (exponent == top) return std::numeric_limits<double>::quiet_NaN();
  } else if (magnitude == 0x7f) {
    return std::numeric_limits<double>::quiet_NaN();
  }
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - format.bias - format.mantissa_bits);
  return sign * std::ldexp((1 << format.mantissa_bits) + mantissa, exponent - format.bias - format.mantissa_bits);
}

// Rounds to nearest, ties to the even code, and saturates: by a search among the finite values.
class SlowOracle {
 public:
  explicit SlowOracle(const Fp8Definition& format) : format_(format) {
    for (unsigned code = 0; code < 0x80 && std::isfinite(value_of(format, code)); ++code) {
      values_.push_back(value_of(format, code));
    }
  }

  // The code of x; -1 for NaN.
  int encode(double x) const {
    if (std::isnan(x)) return -1;
    const double magnitude = std::fabs(x);
    std::size_t code = values_.size() - 1;
    if (magnitude < values_.back()) {
      const auto above = std::upper_bound(values_.begin(), values_.end(), magnitude);
      const auto high = static_cast<std::size_t>(above - values_.begin());
      const std::size_t low = high - 1;
      const double middle = (values_[low] + values_[high]) / 2;  // exact: few bits
      code = magnitude < middle || (magnitude == middle && low % 2 == 0) ? low : high;
    }
    if (format_.fnuz && code == 0) return 0;
    return static_cast<int>(code) | (std::signbit(x) ? 0x80 : 0);
  }

  const std::vector<double>& values() const { return values_; }
  // The values at which the code changes: half way between neighbours.
  std::vector<double> boundaries() const {
    std::vector<double> middles;
    for (std::size_t i = 1; i < values_.size(); ++i) middles.push_back((values_[i - 1] + values_[i]) / 2);
    return middles;
  }
  const Fp8Definition& format() const { return format_; }

 private:
  Fp8Definition format_;
  std::vector<double> values_;
};

// The same by table. A boundary has at most 4 mantissa bits, so among floats that share their upper 13 bits the code
// can change only after the first; the table holds the code of the first and the code of the others. The constructor
// asks the slow oracle for the first, the second and the last float of each group: encoding is monotonic, so what both
// ends agree on holds between them.
class FastOracle {
 public:
  explicit FastOracle(const Fp8Definition& format) {
    const SlowOracle slow(format);
    for (std::uint32_t group = 0; group < kGroups; ++group) {
      const std::uint32_t first = group << kGroupBits;
      const auto code = [&](std::uint32_t bits) {
        return static_cast<std::int16_t>(slow.encode(static_cast<double>(std::bit_cast<float>(bits))));
      };
      codes_[group] = {code(first), code(first + 1)};
      if (codes_[group].others != code(first + (1U << kGroupBits) - 1)) {
        throw std::logic_error(std::string("FastOracle: a boundary of ") + format.name + " inside a group");
      }
    }
  }

  int encode(float x) const {
    const auto bits = std::bit_cast<std::uint32_t>(x);
    const Codes& codes = codes_[bits >> kGroupBits];
    return (bits & ((1U << kGroupBits) - 1)) == 0 ? codes.first : codes.others;
  }

 private:
  static constexpr int kGroupBits = 19;
  static constexpr std::uint32_t kGroups = 1U << (32 - kGroupBits);
  struct Codes {
    std::int16_t first, others;
  };
  std::array<Codes, kGroups> codes_{};
};

// Rounds to bf16 or f16: a binary floating-point format like IEEE 754's, with `mantissa_bits` and smallest normal
// exponent `min_exponent`.
inline double round_to(double x, int mantissa_bits, int min_exponent, double max) {
  if (std::isnan(x) || std::isinf(x) || x == 0.0) return x;
  const int exponent = std::max(std::ilogb(x), min_exponent);
  const double unit = std::ldexp(1.0, exponent - mantissa_bits);
  const double rounded = std::nearbyint(x / unit) * unit;  // to nearest even, the mode that C starts with
  return std::fabs(rounded) > max ? std::copysign(std::numeric_limits<double>::infinity(), x) : rounded;
}
inline double round_to_bf16(double x) { return round_to(x, 7, -126, std::ldexp(255, 120)); }
inline double round_to_f16(double x) { return round_to(x, 10, -14, 65504.0); }

inline double value_of_16(unsigned code, int exponent_bits, int mantissa_bits) {
  const unsigned magnitude = code & 0x7fff;
  const int exponent = static_cast<int>(magnitude >> mantissa_bits);
  const int mantissa = static_cast<int>(magnitude & ((1U << mantissa_bits) - 1));
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const double sign = code >= 0x8000 ? -1.0 : 1.0;
  if (exponent == (1 << exponent_bits) - 1) {
    return mantissa != 0 ? std::numeric_limits<double>::quiet_NaN() : sign * std::numeric_limits<double>::infinity();
  }
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return sign * std::ldexp((1 << mantissa_bits) + mantissa, exponent - bias - mantissa_bits);
}
inline double value_of_bf16(unsigned code) { return value_of_16(code, 8, 7); }
inline double value_of_f16(unsigned code) { return value_of_16(code, 5, 10); }

// Calls body(thread, begin, end) on `threads` pieces of [0, count).
template <class Body>
void in_threads(unsigned threads, std::uint64_t count, const Body& body) {
  std::vector<std::thread> pool;
  for (unsigned i = 0; i < threads; ++i) {
    pool.emplace_back([&body, i, threads, count] {
      body(i, count / threads * i, i + 1 == threads ? count : count / threads * (i + 1));
    });
  }
  for (std::thread& thread : pool) thread.join();
}

}  // namespace ingot::oracle
