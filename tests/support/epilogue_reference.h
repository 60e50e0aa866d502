// Compares all outputs of a GEMM with an epilogue with float64. If the GEMM's intermediate values are exact, only
// roundings by the epilogue's own steps are allowed.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "support/compare.h"
#include "support/pointwise_reference.h"
#include "support/reference.h"
#include "support/reference_formats.h"
#include "support/run_case.h"

namespace ingot::test {

// How far the tensor cores' sums may be from the exact ones, relative to the sum of the absolute terms: they keep few
// bits of each product. Other tests bound their errors over a whole output.
inline constexpr double kTensorCoreSum = 0x1p-10;

// The inputs, with a c of NaN and Inf that beta = 0 must leave unread.
SharedMatrices with_unset_c(const Case& c, SharedMatrices inputs);

class EpilogueReference {
 public:
  // sum_error: the error of the sums, in addition to that of adding one by one in f32.
  std::string fault(const Case& c, const SharedMatrices& inputs, const Matrices& outputs, double sum_error);

 private:
  static constexpr double kUnknown = std::numeric_limits<double>::infinity();

  static void add_c(double beta, const GuardedMatrix& c, Expected& x);

  static Expected apply(const Pointwise& expression, const SharedMatrices& inputs, const Expected& x);

  static Expected rounded(Dtype dtype, Expected values);

  // The result is between the codes of the smallest and the largest value that may be encoded.
  static Expected coded(Dtype dtype, double scale, Expected values);

  static Expected amax_of(const GuardedMatrix& out);

  static Expected amax_of(const Expected& values);

  static double larger(double a, double b) { return std::isnan(a) || std::isnan(b) ? NAN : std::max(a, b); }

  GemmReference gemm_;
};

}  // namespace ingot::test
