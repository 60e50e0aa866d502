// Element types. One table holds every fact about a type, so that a new one is one line.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

namespace ingot {

enum class Dtype : std::uint8_t { f32, bf16, f16, e4m3fn, e5m2, e4m3fnuz, e5m2fnuz };

inline constexpr std::array kHighPrecisionDtypes{Dtype::f32, Dtype::bf16, Dtype::f16};
inline constexpr std::array kFp8Dtypes{Dtype::e4m3fn, Dtype::e5m2, Dtype::e4m3fnuz, Dtype::e5m2fnuz};

// "f32", "bf16", "f16", "e4m3fn", "e5m2", "e4m3fnuz", "e5m2fnuz": also the C++ type's name in templates/formats.cuh.
std::string_view name(Dtype dtype);
// The inverse of name(); empty for any other text.
std::optional<Dtype> parse_dtype(std::string_view text);

// Bytes per element.
constexpr int size_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::f32: return 4;
    case Dtype::bf16:
    case Dtype::f16: return 2;
    default: return 1;
  }
}

constexpr bool is_fp8(Dtype dtype) { return size_of(dtype) == 1; }

// The formats of the OCP standard: those that FP8 tensor cores multiply.
constexpr bool is_ocp(Dtype dtype) { return dtype == Dtype::e4m3fn || dtype == Dtype::e5m2; }

// Largest finite value of an FP8 format: 448, 57344, 240, 57344. 0 for the high-precision types.
float fp8_max(Dtype dtype);

}  // namespace ingot
