// Compares the functions of templates/pointwise/math.cuh with float64, and defines what "within the bound" means: for
// the tests of math on host and GPU.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "numerics.cuh"
#include "pointwise/math.cuh"

namespace ingot::checks {

struct Function {
  const char* name;
  float (*grade16)(float);
  float (*grade32)(float);
  double (*exact)(double);
  float math::Errors::*bound;
  float low = -std::numeric_limits<float>::infinity();  // the bound holds from here on
};

inline double exact_sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }
inline double exact_normal_cdf(double x) { return 0.5 * std::erfc(-0.70710678118654752 * x); }
inline double exact_rsqrt(double x) { return 1.0 / std::sqrt(x); }
inline double exact_reciprocal(double x) { return 1.0 / x; }

inline constexpr std::array<Function, 11> kFunctions{{
    {"normal_cdf", math::normal_cdf<math::Reproducible16>, math::normal_cdf<math::Reproducible32>, exact_normal_cdf,
     &math::Errors::normal_cdf, -6.0F},
    {"exp", math::exp<math::Reproducible16>, math::exp<math::Reproducible32>, std::exp, &math::Errors::exp},
    {"expm1", math::expm1<math::Reproducible16>, math::expm1<math::Reproducible32>, std::expm1, &math::Errors::expm1},
    {"log", math::log<math::Reproducible16>, math::log<math::Reproducible32>, std::log, &math::Errors::log},
    {"log1p", math::log1p<math::Reproducible16>, math::log1p<math::Reproducible32>, std::log1p, &math::Errors::log1p},
    {"tanh", math::tanh<math::Reproducible16>, math::tanh<math::Reproducible32>, std::tanh, &math::Errors::tanh},
    {"sigmoid", math::sigmoid<math::Reproducible16>, math::sigmoid<math::Reproducible32>, exact_sigmoid,
     &math::Errors::sigmoid},
    {"erf", math::erf<math::Reproducible16>, math::erf<math::Reproducible32>, std::erf, &math::Errors::erf},
    {"sqrt", math::sqrt<math::Reproducible16>, math::sqrt<math::Reproducible32>, std::sqrt, &math::Errors::sqrt},
    {"rsqrt", math::rsqrt<math::Reproducible16>, math::rsqrt<math::Reproducible32>, exact_rsqrt, &math::Errors::rsqrt},
    {"reciprocal", math::reciprocal<math::Reproducible16>, math::reciprocal<math::Reproducible32>, exact_reciprocal,
     &math::Errors::reciprocal},
}};

// The bits of x stored as f32 (all NaNs become one).
inline std::uint32_t stored_bits(float x) { return float_bits(from_float<f32>(x)); }

// The domain on which kRelativeErrors16 and kRelativeErrorsFast hold.
inline bool in_domain(double x, double exact) {
  const auto normal = [](double v, double low) { return std::fabs(v) >= low && std::fabs(v) < 0x1p126; };
  return (x == 0.0 || normal(x, 0x1p-126)) && (exact == 0.0 || normal(exact, 0x1.6a0ap-126));
}

inline double relative_error(float actual, double exact) {
  if (exact == 0.0) return actual == 0.0F ? 0.0 : std::numeric_limits<double>::infinity();
  return std::fabs(static_cast<double>(actual) / exact - 1.0);
}

// The error in ulps: units of f32's last place at the exact value. If the exact value rounds to Inf, Inf is right, and
// FLT_MAX's last place is the unit.
inline double ulps(float actual, double exact) {
  const float rounded = static_cast<float>(exact);
  if (float_bits(rounded) == float_bits(actual)) return 0.0;
  if (!std::isfinite(actual)) return std::numeric_limits<double>::infinity();
  int exponent = 0;
  std::frexp(exact, &exponent);
  exponent = std::clamp(exponent, -125, 128);
  return std::fabs(static_cast<double>(actual) - exact) / std::ldexp(1.0, exponent - 24);
}

// The largest error over all inputs, and where it occurs; a NaN on one side only counts as infinite.
struct Worst {
  double error = 0.0;
  float input = 0.0F;
  std::uint64_t count = 0;

  void add(double error_here, float x) {
    ++count;
    if (error_here > error || error_here != error_here) {
      error = error_here == error_here ? error_here : std::numeric_limits<double>::infinity();
      input = x;
    }
  }
  void add(const Worst& other) {
    const std::uint64_t both = count + other.count;
    add(other.error, other.input);
    count = both;
  }
  std::string text() const {
    std::ostringstream out;
    out << "error " << std::hexfloat << error << std::defaultfloat << " (" << error << ", 2^" << std::log2(error)
        << ") at " << input << " = " << std::hexfloat << input << ", of " << std::dec << count << " inputs";
    return out.str();
  }
};

inline void add_relative(Worst& worst, float x, float actual, double exact,
                         float low = -std::numeric_limits<float>::infinity()) {
  if (std::isnan(exact) || std::isnan(actual)) {
    if (std::isnan(exact) != std::isnan(actual)) worst.add(std::numeric_limits<double>::infinity(), x);
  } else if (x >= low && in_domain(static_cast<double>(x), exact)) {
    worst.add(relative_error(actual, exact), x);
  }
}

inline void add_ulps(Worst& worst, float x, float actual, double exact,
                     float low = -std::numeric_limits<float>::infinity()) {
  if (std::isnan(exact) || std::isnan(actual)) {
    if (std::isnan(exact) != std::isnan(actual)) worst.add(std::numeric_limits<double>::infinity(), x);
  } else if (x >= low) {
    worst.add(ulps(actual, exact), x);
  }
}

// x and its neighbours up to 16 ulps away, with both signs, for each x at which a function has a branch, clamp or end,
// and for every power of two.
inline std::vector<float> corners() {
  std::vector<float> all;
  std::vector<float> centres{0.0F,      0.25F,   0.3F,     0.5F,      0.6F,   0.707106781F, 1.41421356F,
                             3.1F,      4.0F,    5.93F,    10.0F,     20.0F,  87.0F,        86.9903F,
                             87.33655F, 87.6F,   87.9864F, 88.7228F,  89.0F,  89.4F,        103.28F,
                             104.0F,    0x1p64F, 3e38F,    0x1p-100F, 1e-45F, 0x1p-126F,    3.4028234e38F};
  for (int e = -149; e <= 127; ++e) centres.push_back(std::ldexp(1.0F, e));
  for (const float centre : centres) {
    const std::uint32_t bits = float_bits(centre);
    for (std::uint32_t step = 0; step <= 16; ++step) {
      for (const std::uint32_t near : {bits + step, bits - std::min(step, bits)}) {
        all.push_back(float_from_bits(near));
        all.push_back(float_from_bits(near | 0x80000000U));
      }
    }
  }
  return all;
}

}  // namespace ingot::checks
