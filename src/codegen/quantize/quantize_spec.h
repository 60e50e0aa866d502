// Quantization for formats of up to eight bits other than FP8 training's: MX's groups of 32, and rounding to any
// format.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ingot/api.h"
#include "ingot/codegen/types/dtype.h"
#include "ingot/codegen/types/pass.h"

namespace ingot {

class SpecReader;
struct TemplateInstance;

// Along each row of x[rows, cols], groups of 32 neighbours share a power of two (OCP MX 1.0, 6.3, with the exponent
// rounded down; the last group of a row may be shorter):
//   exponent = floor(log2(max |x|)) - floor(log2(largest value of `out`)), -127 if that is less
//   scales = exponent + 127 as e8m0fnu; 0 (2^-127) for a group of zeros; 255 (NaN) for one with a NaN or an Inf
//   codes = round(x / 2^exponent) to nearest even, saturating: value = code * scale
// Every code of a NaN group is the NaN of e4m3fn and e5m2, 0x7f; the other formats have no NaN, and it is 0.
struct MxQuantizeSpec {
  static constexpr std::string_view kWord = "quantize_mx";
  Dtype in = Dtype::bf16;
  Dtype out = Dtype::e4m3fn;  // e4m3fn, e5m2, e3m2fn, e2m3fn or e2m1fn
  bool operator==(const MxQuantizeSpec&) const = default;
};

// value = x rounded to nearest (between two equally near values, the one whose code is even) in a format with a sign,
// exponent_bits and mantissa_bits, with subnormals, no Inf and no NaN, and bias 2^(exponent_bits - 1) - 1. Values
// beyond the largest, Inf included, saturate; NaN stays NaN, and zeros keep their sign. The result is written in `in`,
// which must hold every value of the format: f16 holds those of formats with up to 4 exponent bits.
struct FloatQuantizeSpec {
  static constexpr std::string_view kWord = "float_quantize";
  Dtype in = Dtype::bf16;
  int exponent_bits = 4;  // 1 ... 7
  int mantissa_bits = 3;  // 0 ... 6; at most 8 bits with the sign and the exponent
  bool operator==(const FloatQuantizeSpec&) const = default;
};

// The functions that kernel_spec.h and generate.h call for every spec.
std::string print_spec(const MxQuantizeSpec& spec);
void validate_spec(const MxQuantizeSpec& spec);
INGOT_API std::uint64_t hash_spec(const MxQuantizeSpec& spec);
void read_spec(const SpecReader& reader, MxQuantizeSpec& spec);
INGOT_API void list_valid(std::vector<MxQuantizeSpec>& specs);
ExtraPasses extra_passes(const MxQuantizeSpec& spec);
TemplateInstance template_instance(const MxQuantizeSpec& spec, Pass pass);

std::string print_spec(const FloatQuantizeSpec& spec);
void validate_spec(const FloatQuantizeSpec& spec);
INGOT_API std::uint64_t hash_spec(const FloatQuantizeSpec& spec);
void read_spec(const SpecReader& reader, FloatQuantizeSpec& spec);
INGOT_API void list_valid(std::vector<FloatQuantizeSpec>& specs);
ExtraPasses extra_passes(const FloatQuantizeSpec& spec);
TemplateInstance template_instance(const FloatQuantizeSpec& spec, Pass pass);

}  // namespace ingot
