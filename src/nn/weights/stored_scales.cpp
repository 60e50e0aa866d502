#include "ingot/nn/weights/stored_scales.h"

#include <cstdint>
#include <cstring>

#include "numerics.cuh"

namespace ingot {
namespace {

float scale_value(Dtype dtype, const std::byte* bytes) {
  const auto read = [&]<class T>(T value) {
    std::memcpy(&value, bytes, sizeof value);
    return value;
  };
  switch (dtype) {
    case Dtype::f32: return read(float{});
    case Dtype::bf16: return to_float(bf16{read(std::uint16_t{})});
    case Dtype::f16: return to_float(f16{read(std::uint16_t{})});
    default: break;
  }
  return to_float(e8m0fnu{std::to_integer<std::uint8_t>(*bytes)});
}

}  // namespace

std::vector<float> scale_values(Dtype dtype, std::span<const std::byte> bytes) {
  const auto element = static_cast<std::size_t>(size_of(dtype));
  std::vector<float> values(bytes.size() / element);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = scale_value(dtype, &bytes[i * element]);
  return values;
}

}  // namespace ingot
