#include "support/reference_formats.h"

namespace ingot::test {

double value_of_fields(std::uint32_t bits, int exponent_bits, int mantissa_bits, int bias) {
  const std::uint32_t mantissa = bits & ((1U << mantissa_bits) - 1U);
  const int exponent = static_cast<int>((bits >> mantissa_bits) & ((1U << exponent_bits) - 1U));
  const bool negative = ((bits >> (mantissa_bits + exponent_bits)) & 1U) != 0;
  const double magnitude = exponent == 0
                               ? std::ldexp(mantissa, 1 - bias - mantissa_bits)
                               : std::ldexp((1U << mantissa_bits) + mantissa, exponent - bias - mantissa_bits);
  return negative ? -magnitude : magnitude;
}

double decode_slowly(Dtype dtype, std::uint32_t bits) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  constexpr double kInf = std::numeric_limits<double>::infinity();
  switch (dtype) {
    case Dtype::f32: return static_cast<double>(std::bit_cast<float>(bits));
    case Dtype::bf16: return static_cast<double>(std::bit_cast<float>(bits << 16U));
    case Dtype::f16:
      if ((bits & 0x7fffU) > 0x7c00U) return kNan;
      if ((bits & 0x7fffU) == 0x7c00U) return (bits & 0x8000U) != 0 ? -kInf : kInf;
      return value_of_fields(bits, 5, 10, 15);
    case Dtype::e4m3fn: return (bits & 0x7fU) == 0x7fU ? kNan : value_of_fields(bits, 4, 3, 7);
    case Dtype::e5m2:
      if ((bits & 0x7fU) > 0x7cU) return kNan;
      if ((bits & 0x7fU) == 0x7cU) return (bits & 0x80U) != 0 ? -kInf : kInf;
      return value_of_fields(bits, 5, 2, 15);
    case Dtype::e4m3fnuz: return bits == 0x80U ? kNan : value_of_fields(bits, 4, 3, 8);
    case Dtype::e5m2fnuz: return bits == 0x80U ? kNan : value_of_fields(bits, 5, 2, 16);
    case Dtype::e3m2fn: return value_of_fields(bits, 3, 2, 3);
    case Dtype::e2m3fn: return value_of_fields(bits, 2, 3, 1);
    case Dtype::e2m1fn: return value_of_fields(bits, 2, 1, 1);
    case Dtype::e8m0fnu: return bits == 0xffU ? kNan : std::ldexp(1.0, static_cast<int>(bits) - 127);
    case Dtype::u8: return bits;
  }
  return kNan;
}

CodeSearch::CodeSearch(int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  for (std::uint32_t code = 0; code < 1U << (exponent_bits + mantissa_bits); ++code) {
    values_.push_back(value_of_fields(code, exponent_bits, mantissa_bits, bias));
  }
}

CodeSearch::CodeSearch(Dtype dtype) {
  for (std::uint32_t code = 0; code < 1U << (bits_of(dtype) - 1); ++code) {
    const double value = decode_slowly(dtype, code);
    if (!std::isfinite(value)) break;
    values_.push_back(value);
  }
}

std::uint32_t CodeSearch::nearest(double magnitude) const {
  if (magnitude >= values_.back()) return static_cast<std::uint32_t>(values_.size() - 1);
  const auto above = std::upper_bound(values_.begin(), values_.end(), magnitude);
  const auto high = static_cast<std::uint32_t>(above - values_.begin());
  const double up = values_[high] - magnitude;
  const double down = magnitude - values_[high - 1];
  return up < down || (up == down && high % 2 == 0) ? high : high - 1;
}

double decode_reference(Dtype dtype, std::uint32_t bits) {
  if (bits_of(dtype) > 8) return decode_slowly(dtype, bits);
  static const auto tables = [] {
    std::array<std::array<double, 256>, kDtypeTable.size()> all{};
    for (const DtypeFacts& facts : kDtypeTable) {
      for (std::uint32_t code = 0; code < 256 && facts.bits <= 8; ++code) {
        all[static_cast<std::size_t>(facts.dtype)][code] = decode_slowly(facts.dtype, code);
      }
    }
    return all;
  }();
  return tables[static_cast<std::size_t>(dtype)][bits];
}

std::uint8_t encode_by_search(Dtype dtype, float x) {
  if (std::isnan(x)) return 0x80;
  const double magnitude = std::fabs(static_cast<double>(x));
  std::uint32_t below = 0;  // the largest code whose value is <= magnitude; positive codes are in order
  for (std::uint32_t step = 64; step != 0; step /= 2) {
    if (decode_reference(dtype, below + step) <= magnitude) below += step;
  }
  std::uint32_t code = below;
  if (below < 127) {
    const double down = magnitude - decode_reference(dtype, below);
    const double up = decode_reference(dtype, below + 1) - magnitude;
    if (up < down || (up == down && below % 2 == 1)) code = below + 1;
  }
  return static_cast<std::uint8_t>(code == 0 || !std::signbit(x) ? code : code | 0x80U);
}

std::uint8_t encode_reference(Dtype dtype, float x) {
  switch (dtype) {
    case Dtype::e4m3fn: return std::isnan(x) ? std::uint8_t{0x7f} : __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3);
    case Dtype::e5m2: return std::isnan(x) ? std::uint8_t{0x7f} : __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E5M2);
    default: return encode_by_search(dtype, x);
  }
}

double round_reference(Dtype dtype, double x) {
  if (x == 0 || !std::isfinite(x)) return x;
  if (dtype == Dtype::f32) return static_cast<double>(static_cast<float>(x));
  const int mantissa_bits = dtype == Dtype::bf16 ? 7 : 10;
  const int lowest_exponent = dtype == Dtype::bf16 ? -126 : -14;
  const double largest = dtype == Dtype::bf16 ? 0x1.fep127 : 65504.0;
  const int exponent = std::max(std::ilogb(x), lowest_exponent);
  const double rounded = std::ldexp(std::nearbyint(std::ldexp(x, mantissa_bits - exponent)), exponent - mantissa_bits);
  return std::fabs(rounded) > largest ? std::copysign(std::numeric_limits<double>::infinity(), x) : rounded;
}

double unit_roundoff(Dtype dtype) { return dtype == Dtype::f32 ? 0x1p-24 : dtype == Dtype::bf16 ? 0x1p-8 : 0x1p-11; }

}  // namespace ingot::test
