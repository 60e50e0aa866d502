// The norms in float64, straight from their definitions, and how far f32 results may be from them.
//
// To sum a row, a thread adds at most 4 + cols / 4096 groups of 8 columns; there are 3 additions within a group, 5
// within a warp and 16 over warps: that many roundings are between a term and the sum. If an f32 sum overflows there is
// no bound: Inf.
#pragma once

#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "support/reference.h"

namespace ingot::test {

inline constexpr double kUlp = 0x1p-24;
inline double roundings_of_row_sum(std::int64_t cols) { return 28.0 + static_cast<double>(cols) / 4096.0; }
double bound_or_none(double bound, double magnitude);
double rounding_to(Dtype dtype, double value);

// Like value_difference(), but it checks no element without a bound.
std::string bounded_difference(const std::string& what, const Expected& expected, const GuardedMatrix& actual);

struct NormReference {
  Expected mean, rstd, values;
};

// Element c of an optional vector; `otherwise` if the vector does not exist.
double element_or(const SharedMatrices& inputs, const char* name, std::int64_t c, double otherwise);

NormReference norm_reference(const NormSpec& spec, const SharedMatrices& inputs, float eps);

struct NormBackwardReference {
  Expected grad_input, grad_gamma, grad_beta;
};

NormBackwardReference norm_backward_reference(const NormBackwardSpec& spec, const SharedMatrices& inputs);

}  // namespace ingot::test
