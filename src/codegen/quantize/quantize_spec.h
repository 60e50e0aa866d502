// Casts to formats of up to eight bits whose scales are not FP8 training's: MX's, and rounding to any format.
#pragma once

#include "ingot/codegen/types/dtype.h"

namespace ingot {

// Along each row of x[rows, cols], groups of 32 neighbours share a power of two (OCP MX 1.0, 6.3, with the exponent
// rounded down; the last group of a row may be shorter):
//   exponent = floor(log2(max |x|)) - floor(log2(largest value of `out`)), -127 if that is less
//   scales = exponent + 127 as e8m0fnu; 0 (2^-127) for a group of zeros; 255 (NaN) for one with a NaN or an Inf
//   codes = round(x / 2^exponent) to nearest even, saturating: value = code * scale
// Every code of a NaN group is e4m3fn's or e5m2's NaN, 0x7f; the other formats have none, and it is 0.
struct MxQuantizeSpec {
  Dtype in = Dtype::bf16;
  Dtype out = Dtype::e4m3fn;  // e4m3fn, e5m2, e3m2fn, e2m3fn or e2m1fn
  bool operator==(const MxQuantizeSpec&) const = default;
};

// value = x rounded to nearest even (of two that are equally near, the one whose code is even) in a format of a sign,
// exponent_bits and mantissa_bits, with subnormals, no Inf and no NaN, and bias 2^(exponent_bits - 1) - 1. What is
// larger than the largest value, Inf included, becomes that; NaN stays NaN, and zeros keep their sign. The result is
// written in `in`, which must hold every value of the format: f16 those of up to 4 bits of exponent.
struct FloatQuantizeSpec {
  Dtype in = Dtype::bf16;
  int exponent_bits = 4;  // 1 ... 7
  int mantissa_bits = 3;  // 0 ... 6, with the sign and the exponent 8 at most
  bool operator==(const FloatQuantizeSpec&) const = default;
};

}  // namespace ingot
