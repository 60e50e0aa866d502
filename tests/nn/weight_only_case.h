// Layers with weights in 8, 6 and 4 bits made from random codes, and their expected results in float64. It shares no
// code with the library: it decodes and packs codes itself.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "ingot/codegen/dequant/dequant_spec.h"
#include "ingot/nn/weights/weight_only.h"
#include "ingot/runtime/core/buffer.h"
#include "ingot/runtime/core/stream.h"
#include "nn/reference.h"
#include "support/reference_formats.h"

namespace ingot::test {

// ---- the formats ---------------------------------------------------------------------------------------------------

// Searches all codes for the nearest, and takes the even one of two equally near; saturates.
std::uint8_t encode_weight_code(Dtype dtype, double x);

// ---- codes and scales on the host ----------------------------------------------------------------------------------

struct HostCodes {
  Dtype dtype{};
  std::int64_t rows = 0, cols = 0;
  std::vector<std::uint8_t> codes{};  // one per byte

  double value(std::int64_t r, std::int64_t c) const;
};

// Random finite codes.
HostCodes random_codes(Dtype dtype, std::int64_t rows, std::int64_t cols, unsigned seed);

// Packs rows of `row_stride` elements; bits that belong to no code are ones.
std::vector<std::uint8_t> rows_of_codes(const HostCodes& host, std::int64_t row_stride);

// Device memory with the host's content.
class DeviceBytes {
 public:
  DeviceBytes(const void* data, std::size_t bytes, Backend& backend, Stream& stream);
  template <class T>
  DeviceBytes(const std::vector<T>& values, Backend& backend, Stream& stream)
      : DeviceBytes(values.data(), values.size() * sizeof(T), backend, stream) {}

  Tensor view(Dtype dtype, std::int64_t rows, std::int64_t cols, std::int64_t row_stride = 0) const;

 private:
  Buffer buffer_;
  Device device_;
};

// ---- kinds of layers -----------------------------------------------------------------------------------------------

inline constexpr std::array kWeightLayouts{WeightLayout::packed, WeightLayout::packed_f16, WeightLayout::row_major};
inline constexpr std::array kWeightScales = kDequantGranularities;

std::vector<WeightOnlyOptions> every_kind_of_weight();

std::string print(const WeightOnlyOptions& options);

struct WeightScales {
  std::int64_t rows = 1, cols = 1;
  std::vector<float> scale_inv{};
  std::vector<std::uint8_t> powers{};  // for mx: the same scales as e8m0fnu codes
};

// With `pow2` powers of two, so that 1 / (1 / s) is s; otherwise any numbers around one.
WeightScales random_scales(const WeightOnlyOptions& options, std::int64_t n, std::int64_t k, unsigned seed, bool pow2);

Matrix values_of(const HostCodes& codes, const WeightScales& scales, const WeightOnlyOptions& options);

WeightOnlyLinear layer_of(const HostCodes& codes, const WeightScales& scales, const WeightOnlyOptions& options,
                          Backend& backend, Stream& stream);

// Runs forward() into memory that holds NaN, and returns y.
DeviceMatrix forward_of(const WeightOnlyLinear& layer, const DeviceMatrix& x, Dtype out, Backend& backend,
                        Stream& stream, const Tensor& bias = {});

}  // namespace ingot::test
