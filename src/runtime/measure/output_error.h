// How far outputs lie from the right ones, where the sums behind them may be rounded in another way. An error counts
// relative to the value, and to what an error as large as the sums themselves would make of it: so what a function does
// to a rounding where it is steep is forgiven, and where it is flat nothing is. Where rounding to the output's dtype is
// coarse, an error counts from the middle between two neighbours on: what lies there may be rounded either way.
#pragma once

#include <span>
#include <vector>

#include "ingot/codegen/pointwise/pointwise_program.h"
#include "ingot/codegen/types/dtype.h"

namespace ingot {

// How values are stored.
struct OutputFormat {
  Dtype dtype = Dtype::f32;
  float scale = 1.0F;  // of an FP8 dtype
};

// The value as it is stored, and read back.
float stored_value(float value, const OutputFormat& format);

struct RightValue {
  float value = 0.0F;   // before it is rounded
  float stored = 0.0F;  // and after
  float scale = 0.0F;   // of its errors; Inf: any value is right
};

// Of f(x, inputs) where the x are of about this size and good to 2^-7 of it. `inputs`: of the same elements.
std::vector<RightValue> right_values(const Pointwise& f, std::span<const float> x,
                                     std::span<const PointwiseValues> inputs, float size, const OutputFormat& format);

// The root mean square of the errors, each at most 1. `actual`: as stored_value() gives them.
double output_error(std::span<const float> actual, std::span<const RightValue> expected, const OutputFormat& format);

float root_mean_square(std::span<const float> values);

}  // namespace ingot
