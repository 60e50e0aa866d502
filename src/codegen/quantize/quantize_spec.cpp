#include "ingot/codegen/quantize/quantize_spec.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "ingot/codegen/types/spec_hash.h"
#include "ingot/codegen/types/spec_reader.h"
#include "ingot/codegen/types/template_text.h"

namespace ingot {
namespace {

constexpr int kMaxExponentBits = 7;
constexpr int kMaxMantissaBits = 6;
constexpr int kMaxBits = 7;  // of both
// With five bits the largest value would be 2^16 or more.
constexpr int kMaxExponentBitsOfF16 = 4;

bool is_digit(char c) { return c >= '0' && c <= '9'; }

}  // namespace

std::string print_spec(const MxQuantizeSpec& spec) {
  return fmt::format("quantize_mx {}->{}", name(spec.in), name(spec.out));
}

std::string print_spec(const FloatQuantizeSpec& spec) {
  return fmt::format("float_quantize {} e{}m{}", name(spec.in), spec.exponent_bits, spec.mantissa_bits);
}

void validate_spec(const MxQuantizeSpec& spec) {
  require_dtype(spec, "in", spec.in, kHighPrecisionDtypes);
  require_dtype(spec, "out", spec.out, kMxDtypes);
}

void validate_spec(const FloatQuantizeSpec& spec) {
  require_dtype(spec, "in", spec.in, kHighPrecisionDtypes);
  if (spec.exponent_bits < 1 || spec.exponent_bits > kMaxExponentBits) {
    refuse(spec, fmt::format("exponent_bits is {}, but must be 1 to {}", spec.exponent_bits, kMaxExponentBits));
  }
  if (spec.mantissa_bits < 0 || spec.mantissa_bits > kMaxMantissaBits) {
    refuse(spec, fmt::format("mantissa_bits is {}, but must be 0 to {}", spec.mantissa_bits, kMaxMantissaBits));
  }
  if (spec.exponent_bits + spec.mantissa_bits > kMaxBits) {
    refuse(spec, fmt::format("the format has {} bits with its sign, but must have 8 at most",
                             1 + spec.exponent_bits + spec.mantissa_bits));
  }
  if (spec.in == Dtype::f16 && spec.exponent_bits > kMaxExponentBitsOfF16) {
    refuse(spec,
           fmt::format("exponent_bits is {}, but f16 holds the values of formats of up to {} only: take bf16 or f32",
                       spec.exponent_bits, kMaxExponentBitsOfF16));
  }
}

std::uint64_t hash_spec(const MxQuantizeSpec& spec) { return mix(seed<MxQuantizeSpec>() + pack(spec.in, spec.out)); }

std::uint64_t hash_spec(const FloatQuantizeSpec& spec) {
  return mix(seed<FloatQuantizeSpec>() + pack(spec.in, spec.exponent_bits, spec.mantissa_bits));
}

void read_spec(const SpecReader& reader, MxQuantizeSpec& spec) {
  constexpr const char* kDtypes = "<in>-><out>, such as bf16->e2m1fn";
  reader.require_words(2, kDtypes);
  reader.no_options(2, kDtypes);
  const auto [in, out] = reader.halves(reader.word(1), "->", kDtypes);
  spec.in = reader.dtype_among(in, list(kHighPrecisionDtypes));
  spec.out = reader.dtype_among(out, list(kMxDtypes));
}

void read_spec(const SpecReader& reader, FloatQuantizeSpec& spec) {
  constexpr const char* kForm = "<in> and e<exponent bits>m<mantissa bits>, such as bf16 e3m2";
  reader.require_words(3, kForm);
  reader.no_options(3, kForm);
  spec.in = reader.dtype_among(reader.word(1), list(kHighPrecisionDtypes));
  // Valid numbers of bits have one digit.
  const std::string& format = reader.word(2);
  if (format.size() != 4 || format[0] != 'e' || !is_digit(format[1]) || format[2] != 'm' || !is_digit(format[3])) {
    reader.fail(fmt::format("\"{}\" is no format; expected e<exponent bits>m<mantissa bits>, such as e3m2", format));
  }
  spec.exponent_bits = format[1] - '0';
  spec.mantissa_bits = format[3] - '0';
}

void list_valid(std::vector<MxQuantizeSpec>& specs) {
  for (const Dtype in : kHighPrecisionDtypes) {
    for (const Dtype out : kMxDtypes) specs.push_back({.in = in, .out = out});
  }
}

void list_valid(std::vector<FloatQuantizeSpec>& specs) {
  for (const Dtype in : kHighPrecisionDtypes) {
    const int most = in == Dtype::f16 ? kMaxExponentBitsOfF16 : kMaxExponentBits;
    for (int e = 1; e <= most; ++e) {
      for (int m = 0; m <= std::min(kMaxMantissaBits, kMaxBits - e); ++m) {
        specs.push_back({.in = in, .exponent_bits = e, .mantissa_bits = m});
      }
    }
  }
}

// ---- The instantiations of templates/quantize -----------------------------------------------------------------------

ExtraPasses extra_passes(const MxQuantizeSpec&) { return {}; }

TemplateInstance template_instance(const MxQuantizeSpec& spec, Pass) {
  return {"quantize/quantize_mx.cuh", fmt::format("quantize_mx<{}, {}>", type_text(spec.in), type_text(spec.out)),
          print_spec(spec)};
}

ExtraPasses extra_passes(const FloatQuantizeSpec&) { return {}; }

TemplateInstance template_instance(const FloatQuantizeSpec& spec, Pass) {
  return {"quantize/float_quantize.cuh",
          fmt::format("float_quantize<{}, {}>", type_text(spec.in),
                      aggregate_text("FloatQuantizeConfig", {field("exponent_bits", spec.exponent_bits),
                                                             field("mantissa_bits", spec.mantissa_bits)})),
          print_spec(spec)};
}

}  // namespace ingot
