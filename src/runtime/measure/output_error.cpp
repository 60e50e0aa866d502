#include "ingot/runtime/measure/output_error.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

#include "ingot/runtime/core/visit.h"

#include "numerics.cuh"
#include "scaling.cuh"

namespace ingot {
namespace {

constexpr float kDoubt = 0x1p-7F;  // of x, relative to its size

std::vector<float> at(const PointwiseProgram& f, std::span<const float> x, float shift,
                      std::span<const PointwiseValues> inputs) {
  std::vector<float> values(x.begin(), x.end());
  for (float& value : values) value += shift;
  f.run(values.size(), values.data(), inputs, values.data());
  return values;
}

bool same(float a, float b) { return a == b || (std::isnan(a) && std::isnan(b)); }

// Instead of Inf, to which an output overflows.
float finite(float value, Dtype dtype) {
  const float largest = dtype == Dtype::f16 ? 65504.0F : std::numeric_limits<float>::max();
  return std::clamp(value, -largest, largest);  // NaN stays
}

double error_of(float actual, const RightValue& right, const OutputFormat& format) {
  if (std::isinf(right.scale) || same(actual, right.stored)) return 0;
  if (std::isnan(actual) || std::isnan(right.stored)) return 1;
  const double there = static_cast<double>(finite(actual, format.dtype));
  const double middle = (there + static_cast<double>(finite(right.stored, format.dtype))) / 2;
  const float between = stored_value(static_cast<float>(middle), format);
  const bool neighbours = same(between, actual) || same(between, right.stored);
  const double error =
      std::fabs(there - static_cast<double>(right.value)) - (neighbours ? std::fabs(there - middle) : 0.0);
  return error <= 0 ? 0 : std::min(1.0, error / static_cast<double>(right.scale));
}

}  // namespace

std::vector<RightValue> right_values(const Pointwise& f, std::span<const float> x,
                                     std::span<const PointwiseValues> inputs, float size, const OutputFormat& format) {
  std::vector<RightValue> right;
  right.reserve(x.size());
  if (!f) {
    for (const float value : x) {
      right.push_back({.value = value, .stored = stored_value(value, format), .scale = std::fabs(value) + size});
    }
    return right;
  }
  const PointwiseProgram program(f, PointwisePrecision::reproducible32);
  const std::vector<float> values = at(program, x, 0.0F, inputs);
  const std::vector<float> below = at(program, x, -kDoubt * size, inputs);
  const std::vector<float> above = at(program, x, kDoubt * size, inputs);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const float value = values[i];
    float scale = std::numeric_limits<float>::infinity();
    if (std::isfinite(value) && std::isfinite(below[i]) && std::isfinite(above[i])) {
      scale = std::fabs(value) + std::max(std::fabs(below[i] - value), std::fabs(above[i] - value)) / kDoubt;
    } else if (same(value, below[i]) && same(value, above[i])) {
      scale = 0.0F;
    }
    right.push_back({.value = value, .stored = stored_value(value, format), .scale = scale});
  }
  return right;
}

float stored_value(float value, const OutputFormat& format) {
  return visit_dtype(format.dtype, [&]<class T>(Type<T>) {
    if constexpr (Fp8Format<T>) {
      return to_float(quantize<T>(value, format.scale)) / format.scale;
    } else {
      return to_float(from_float<T>(value));
    }
  });
}

double output_error(std::span<const float> actual, std::span<const RightValue> expected, const OutputFormat& format) {
  double squares = 0;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    const double error = error_of(actual[i], expected[i], format);
    squares += error * error;
  }
  return std::sqrt(squares / static_cast<double>(std::max<std::size_t>(actual.size(), 1)));
}

float root_mean_square(std::span<const float> values) {
  double squares = 0;
  for (const float value : values) squares += static_cast<double>(value) * static_cast<double>(value);
  return static_cast<float>(std::sqrt(squares / static_cast<double>(std::max<std::size_t>(values.size(), 1))));
}

}  // namespace ingot
