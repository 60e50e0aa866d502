// Element types. One table holds every fact about a type, so that a new one is one line.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

namespace ingot {

// Three are of less than a byte, as weights: rows of packed codes (row_bytes()). e8m0fnu: the powers of two
// that scale groups of 32 of them, 2^(code - 127), 255 being NaN (OCP MX 1.0).
// u8: bytes whose meaning is told otherwise, such as a packed weight.
// (GCC says that u8 would hide a type of that name, as if a scoped enum's names were not its own.)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wshadow"
enum class Dtype : std::uint8_t {
  f32,
  bf16,
  f16,
  e4m3fn,
  e5m2,
  e4m3fnuz,
  e5m2fnuz,
  e8m0fnu,
  e3m2fn,
  e2m3fn,
  e2m1fn,
  u8
};
#pragma GCC diagnostic pop

inline constexpr std::array kHighPrecisionDtypes{Dtype::f32, Dtype::bf16, Dtype::f16};
inline constexpr std::array kFp8Dtypes{Dtype::e4m3fn, Dtype::e5m2, Dtype::e4m3fnuz, Dtype::e5m2fnuz};
inline constexpr std::array kSubByteDtypes{Dtype::e3m2fn, Dtype::e2m3fn, Dtype::e2m1fn};
// What a weight that is decoded within a product may be of.
inline constexpr std::array kWeightDtypes{Dtype::e4m3fn, Dtype::e5m2,   Dtype::e4m3fnuz, Dtype::e5m2fnuz,
                                          Dtype::e3m2fn, Dtype::e2m3fn, Dtype::e2m1fn};

// "f32", "bf16", "e4m3fn" ...: also the C++ type's name in templates/formats.cuh.
std::string_view name(Dtype dtype);
// The inverse of name(); empty for any other text.
std::optional<Dtype> parse_dtype(std::string_view text);

constexpr int bits_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::f32: return 32;
    case Dtype::bf16:
    case Dtype::f16: return 16;
    case Dtype::e3m2fn:
    case Dtype::e2m3fn: return 6;
    case Dtype::e2m1fn: return 4;
    default: return 8;
  }
}

constexpr bool is_sub_byte(Dtype dtype) { return bits_of(dtype) < 8; }

// Bytes per element; of a dtype of less than a byte 1, the size of what its rows are addressed in.
constexpr int size_of(Dtype dtype) { return is_sub_byte(dtype) ? 1 : bits_of(dtype) / 8; }

// Elements that fill whole bytes: 4 of six bits, 2 of four, else 1. Row strides are multiples of it.
constexpr int packed_unit(Dtype dtype) { return bits_of(dtype) == 6 ? 4 : bits_of(dtype) == 4 ? 2 : 1; }

// Bytes of `elements` in a row. Element i of less than a byte has the bits [i * b, (i + 1) * b) of its row, the least
// significant first: of four bits the low half of a byte comes first; four of six bits fill three bytes.
constexpr std::int64_t row_bytes(Dtype dtype, std::int64_t elements) {
  if (!is_sub_byte(dtype)) return elements * size_of(dtype);
  return elements / 8 * bits_of(dtype) + (elements % 8 * bits_of(dtype) + 7) / 8;  // overflows for no number
}

constexpr bool is_fp8(Dtype dtype) { return dtype >= Dtype::e4m3fn && dtype <= Dtype::e5m2fnuz; }

// The formats of the OCP standard: those that FP8 tensor cores multiply.
constexpr bool is_ocp(Dtype dtype) { return dtype == Dtype::e4m3fn || dtype == Dtype::e5m2; }

// Largest finite value of an FP8 format: 448, 57344, 240, 57344; of those of less than a byte 28, 7.5, 6. 0 for the
// others.
float fp8_max(Dtype dtype);

}  // namespace ingot
