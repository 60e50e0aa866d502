// The values of a fused cast in float64, each with a bound for what f32 arithmetic may make of it; and how far the
// values of a fast expression may be from those of the reproducible one.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ingot/codegen/kernel_spec.h"
#include "ingot/codegen/pointwise/pointwise.h"
#include "ingot/runtime/context/backend.h"
#include "support/compare.h"
#include "support/guarded_matrix.h"
#include "support/reference.h"
#include "support/run_case.h"

namespace ingot::test {

// A value, and how far from it a computation with rounding errors may end. If `error` is not finite, nothing is known.
struct Bounded {
  double value = 0;
  double error = 0;
};

// The relative errors that the steps may add to those of their operands. They exceed what templates/pointwise/math.cuh
// promises for each grade (1.7 * 2^-17 and 1.6 ulp), which the tests of the functions check.
struct StepErrors {
  double function = 0;  // exp, tanh, divide ...
  static constexpr double kArithmetic = 0x1p-24;
  static constexpr double kSmallest = 0x1p-125;  // results below are promised no relative error

  static StepErrors of(const CastSpec& spec);
};

// One operation in float64.
double step_reference(PointwiseOp op, double a, double b);

// The same on operands with errors. Every function is monotonic in each operand, or has a kink only at 0, so the
// corners of the operands' intervals bound it; except for a divisor that may be 0.
Bounded bounded_step(PointwiseOp op, const Bounded& a, const Bounded& b, const StepErrors& errors);

// The value of one element before any rounding to a dtype.
Bounded bounded_value(const Pointwise& expression, const Bounded& x, std::span<const double> inputs,
                      const StepErrors& errors);

// Compares the library's own values (as spec.in, or as f32) with float64: evaluate() gives the expected values, and the
// steps give their bounds. Elements about which nothing is known are skipped; of large matrices only one element in
// `every` is checked.
std::string value_fault(const CastSpec& spec, const SharedMatrices& inputs, const GuardedMatrix& values);

// The same elements in f32.
std::shared_ptr<const GuardedMatrix> widened(const GuardedMatrix& matrix);

// The exact values that a backend casts: the expression's result, in a dtype that does not round it again.
std::shared_ptr<const GuardedMatrix> own_values(const CastSpec& spec, const Case& c, const SharedMatrices& inputs,
                                                Backend& backend, Stream& stream);

// Checks that `result` is the values rounded to its own dtype.
std::string rounding_fault(const GuardedMatrix& values, const GuardedMatrix& result);

// Checks the column sums of `values` against the error of adding them up in f32. A column whose sum might overflow f32
// on the way is not checked.
std::string cast_sum_fault(Dtype out, const GuardedMatrix& values, const GuardedMatrix& sum);

// Compares an output of a fast expression with that of the reproducible one. Values may differ by 1e-4 of themselves
// or, if the expression cancels, by 1e-5 of the largest value: 16-bit results by one step of their rounding, maxima and
// scale_inv by one step of bf16's, codes by one step; sums accumulate their terms' differences. `same_scale_inv`: if
// set, few codes may differ.
std::string fast_difference(const std::string& what, const GuardedMatrix& expected, const GuardedMatrix& actual,
                            bool same_scale_inv);

// Compares all outputs of a fast cast; returns the first fault.
std::string fast_difference(const Matrices& expected, const Matrices& actual);

}  // namespace ingot::test
