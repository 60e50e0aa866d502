#include "ingot/codegen/quantize/quantize_spec.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <optional>

#include "ingot/codegen/quantize/quantize_spec_text.h"
#include "ingot/codegen/types/spec_words.h"
#include "ingot/runtime/error.h"

namespace ingot {
namespace {

constexpr std::array kMxDtypes{Dtype::e4m3fn, Dtype::e5m2, Dtype::e3m2fn, Dtype::e2m3fn, Dtype::e2m1fn};

constexpr int kMaxExponentBits = 7;
constexpr int kMaxMantissaBits = 6;
constexpr int kMaxBits = 7;  // of both
// Of five bits the largest value would be 2^16 or more.
constexpr int kMaxExponentBitsOfF16 = 4;

template <class Spec>
void require(bool holds, const Spec& spec, const std::string& message) {
  if (!holds) throw Error(ErrorCode::invalid_spec, print_spec(spec), message);
}

template <class Spec>
void require_dtype(const Spec& spec, const char* field, Dtype dtype, std::span<const Dtype> allowed) {
  const std::string fault = dtype_fault(field, dtype, allowed);
  require(fault.empty(), spec, fault);
}

}  // namespace

// ---- print -------------------------------------------------------------------------------------------------------

std::string print_spec(const MxQuantizeSpec& spec) {
  return fmt::format("quantize_mx {}->{}", name(spec.in), name(spec.out));
}

std::string print_spec(const FloatQuantizeSpec& spec) {
  return fmt::format("float_quantize {} e{}m{}", name(spec.in), spec.exponent_bits, spec.mantissa_bits);
}

// ---- validate ----------------------------------------------------------------------------------------------------

void validate_spec(const MxQuantizeSpec& spec) {
  require_dtype(spec, "in", spec.in, kHighPrecisionDtypes);
  require_dtype(spec, "out", spec.out, kMxDtypes);
}

void validate_spec(const FloatQuantizeSpec& spec) {
  require_dtype(spec, "in", spec.in, kHighPrecisionDtypes);
  require(spec.exponent_bits >= 1 && spec.exponent_bits <= kMaxExponentBits, spec,
          fmt::format("exponent_bits is {}, but must be 1 to {}", spec.exponent_bits, kMaxExponentBits));
  require(spec.mantissa_bits >= 0 && spec.mantissa_bits <= kMaxMantissaBits, spec,
          fmt::format("mantissa_bits is {}, but must be 0 to {}", spec.mantissa_bits, kMaxMantissaBits));
  require(spec.exponent_bits + spec.mantissa_bits <= kMaxBits, spec,
          fmt::format("the format has {} bits with its sign, but must have 8 at most",
                      1 + spec.exponent_bits + spec.mantissa_bits));
  require(spec.in != Dtype::f16 || spec.exponent_bits <= kMaxExponentBitsOfF16, spec,
          fmt::format("exponent_bits is {}, but f16 holds the values of formats of up to {} only: take bf16 or f32",
                      spec.exponent_bits, kMaxExponentBitsOfF16));
}

// ---- parse -------------------------------------------------------------------------------------------------------

namespace {

class QuantizeParser {
 public:
  QuantizeParser(std::string_view line, std::span<const std::string> words) : line_(line), words_(words) {}

  MxQuantizeSpec mx() const {
    require_words(2, "<in>-><out>, such as bf16->e2m1fn");
    const std::string_view dtypes = words_[1];
    const auto arrow = dtypes.find("->");
    if (arrow == std::string_view::npos) fail(fmt::format("\"{}\" must be <in>-><out>, such as bf16->e2m1fn", dtypes));
    return {.in = dtype(dtypes.substr(0, arrow), kHighPrecisionDtypes),
            .out = dtype(dtypes.substr(arrow + 2), kMxDtypes)};
  }

  FloatQuantizeSpec to_float() const {
    require_words(3, "<in> and e<exponent bits>m<mantissa bits>, such as bf16 e3m2");
    FloatQuantizeSpec spec{.in = dtype(words_[1], kHighPrecisionDtypes)};
    // One digit each is all that is valid.
    const std::string& format = words_[2];
    if (format.size() != 4 || format[0] != 'e' || !is_digit(format[1]) || format[2] != 'm' || !is_digit(format[3])) {
      fail(fmt::format("\"{}\" is no format; expected e<exponent bits>m<mantissa bits>, such as e3m2", format));
    }
    spec.exponent_bits = format[1] - '0';
    spec.mantissa_bits = format[3] - '0';
    return spec;
  }

 private:
  [[noreturn]] void fail(const std::string& message) const {
    throw Error(ErrorCode::invalid_spec, std::string(line_), message);
  }

  static bool is_digit(char c) { return c >= '0' && c <= '9'; }

  void require_words(std::size_t count, const char* form) const {
    if (words_.size() < count) fail(fmt::format("\"{}\" must be followed by {}", words_[0], form));
    if (words_.size() > count) {
      fail(fmt::format("\"{}\" is no word of {}; expected {}", words_[count], words_[0], form));
    }
  }

  Dtype dtype(std::string_view text, std::span<const Dtype> expected) const {
    if (const auto dtype = parse_dtype(text)) return *dtype;
    fail(fmt::format("\"{}\" is no dtype; expected {}", text, list(expected)));
  }

  std::string_view line_;
  std::span<const std::string> words_;
};

}  // namespace

MxQuantizeSpec parse_mx_quantize(std::string_view line, std::span<const std::string> words) {
  return QuantizeParser(line, words).mx();
}

FloatQuantizeSpec parse_float_quantize(std::string_view line, std::span<const std::string> words) {
  return QuantizeParser(line, words).to_float();
}

// ---- all ---------------------------------------------------------------------------------------------------------

std::vector<MxQuantizeSpec> all_valid_mx_quantizes() {
  std::vector<MxQuantizeSpec> specs;
  for (const Dtype in : kHighPrecisionDtypes) {
    for (const Dtype out : kMxDtypes) specs.push_back({.in = in, .out = out});
  }
  return specs;
}

std::vector<FloatQuantizeSpec> all_valid_float_quantizes() {
  std::vector<FloatQuantizeSpec> specs;
  for (const Dtype in : kHighPrecisionDtypes) {
    const int most = in == Dtype::f16 ? kMaxExponentBitsOfF16 : kMaxExponentBits;
    for (int e = 1; e <= most; ++e) {
      for (int m = 0; m <= std::min(kMaxMantissaBits, kMaxBits - e); ++m) {
        specs.push_back({.in = in, .exponent_bits = e, .mantissa_bits = m});
      }
    }
  }
  return specs;
}

}  // namespace ingot
