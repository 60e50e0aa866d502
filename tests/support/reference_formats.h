// A second definition of the number formats, in float64 and without templates/: the value of each code by its
// definition (sign, exponent, mantissa), and rounding by NVIDIA's own host code (cuda_fp8.h) or by a search among all
// values.
#pragma once

// Include this first: it and CUDA's headers both define __shared__ for host compilers, and only a system header may do
// so again.
#include "platform.cuh"

#include <cuda_fp8.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "ingot/codegen/types/dtype.h"

namespace ingot::test {

// The value of a number with these fields, from the lowest bit: mantissa, exponent, sign.
double value_of_fields(std::uint32_t bits, int exponent_bits, int mantissa_bits, int bias);

double decode_slowly(Dtype dtype, std::uint32_t bits);

// The values of a format's nonnegative codes, in order.
class CodeSearch {
 public:
  // A format without Inf and NaN, with IEEE 754's bias.
  CodeSearch(int exponent_bits, int mantissa_bits);
  // A dtype; its values end before Inf and NaN.
  explicit CodeSearch(Dtype dtype);

  // The code whose value is nearest to a magnitude, the even one of two; the last code if the magnitude is beyond it.
  std::uint32_t nearest(double magnitude) const;

  double value(std::uint32_t code) const { return values_[code]; }
  double largest() const { return values_.back(); }
  const std::vector<double>& values() const { return values_; }

 private:
  std::vector<double> values_;
};

// Like decode_slowly(), but from a table for the 8-bit formats.
double decode_reference(Dtype dtype, std::uint32_t bits);

// The nearest code of a fnuz format, the even one if two are equally near; it saturates.
std::uint8_t encode_by_search(Dtype dtype, float x);

// Rounds to nearest even and saturates; NaN gives the format's NaN.
std::uint8_t encode_reference(Dtype dtype, float x);

// x rounded to nearest even in f32, bf16 or f16; overflow gives Inf.
double round_reference(Dtype dtype, double x);

// The largest relative error of that rounding.
double unit_roundoff(Dtype dtype);

}  // namespace ingot::test
