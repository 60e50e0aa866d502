// Measures how far outputs are from the right ones, although their accumulations may be rounded differently.
//
// An error is divided by the value plus the change that an error as large as the sums themselves would cause in it. So
// where the function of the sums is steep, the rounding that it amplifies is tolerated; where it is flat, no rounding
// of the sums is. If output and right value are neighbours in the output's dtype, the error counts from the midpoint
// between them, which may be rounded either way.
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
  float scale = 0.0F;   // errors are relative to it; Inf: any value is right
};

// The right values of f(x, inputs), if the x are about this size and accurate to 2^-7 of it. `inputs`: for the same
// elements.
std::vector<RightValue> right_values(const Pointwise& f, std::span<const float> x,
                                     std::span<const PointwiseValues> inputs, float size, const OutputFormat& format);

// The root mean square of the errors, each limited to 1. `actual`: as from stored_value().
double output_error(std::span<const float> actual, std::span<const RightValue> expected, const OutputFormat& format);

float root_mean_square(std::span<const float> values);

}  // namespace ingot
