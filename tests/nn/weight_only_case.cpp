#include "nn/weight_only_case.h"

namespace ingot::test {

std::uint8_t encode_weight_code(Dtype dtype, double x) {
  std::uint8_t best = 0;
  double best_distance = std::numeric_limits<double>::infinity();
  for (std::uint32_t code = 0; code < 1U << bits_of(dtype); ++code) {
    const double value = decode_slowly(dtype, code);
    if (!std::isfinite(value) || std::signbit(value) != std::signbit(x)) continue;
    const double distance = std::abs(value - x);
    if (distance > best_distance || (distance == best_distance && code % 2 != 0)) continue;
    best = static_cast<std::uint8_t>(code);
    best_distance = distance;
  }
  return best;
}

double HostCodes::value(std::int64_t r, std::int64_t c) const {
  return decode_slowly(dtype, codes[static_cast<std::size_t>(r * cols + c)]);
}

HostCodes random_codes(Dtype dtype, std::int64_t rows, std::int64_t cols, unsigned seed) {
  HostCodes made{dtype, rows, cols, std::vector<std::uint8_t>(static_cast<std::size_t>(rows * cols))};
  std::mt19937 engine(seed);
  for (std::uint8_t& code : made.codes) {
    do {
      code = static_cast<std::uint8_t>(engine() % (1U << bits_of(dtype)));
    } while (!std::isfinite(decode_slowly(dtype, code)));
  }
  return made;
}

std::vector<std::uint8_t> rows_of_codes(const HostCodes& host, std::int64_t row_stride) {
  const std::int64_t pitch = row_bytes(host.dtype, row_stride);
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(pitch * host.rows), 0xff);
  const int bits = bits_of(host.dtype);
  for (std::int64_t r = 0; r < host.rows; ++r) {
    for (std::int64_t c = 0; c < host.cols; ++c) {
      for (int b = 0; b < bits; ++b) {
        const std::int64_t position = c * bits + b;
        auto& byte = bytes[static_cast<std::size_t>(r * pitch + position / 8)];
        const auto mask = static_cast<std::uint8_t>(1U << (position % 8));
        const bool is_set =
            (host.codes[static_cast<std::size_t>(r * host.cols + c)] >> static_cast<unsigned>(b) & 1U) != 0;
        byte = static_cast<std::uint8_t>(is_set ? byte | mask : byte & ~mask);
      }
    }
  }
  return bytes;
}

DeviceBytes::DeviceBytes(const void* data, std::size_t bytes, Backend& backend, Stream& stream)
    : buffer_(backend, bytes), device_(backend.device()) {
  backend.device_api().copy_from_host(buffer_.data(), data, bytes, stream);
}

Tensor DeviceBytes::view(Dtype dtype, std::int64_t rows, std::int64_t cols, std::int64_t row_stride) const {
  Tensor made = matrix(buffer_.data(), dtype, rows, cols, device_);
  if (row_stride != 0) made.row_stride = row_stride;
  return made;
}

std::vector<WeightOnlyOptions> every_kind_of_weight() {
  std::vector<WeightOnlyOptions> all;
  for (const Dtype dtype : kWeightDtypes) {
    for (const WeightLayout layout : kWeightLayouts) {
      for (const ScaleGranularity scale : kWeightScales) {
        all.push_back({.dtype = dtype, .scale = scale, .layout = layout});
      }
      all.push_back({.dtype = dtype, .scale = kRowGroups32, .mx = true, .layout = layout});
    }
  }
  return all;
}

std::string print(const WeightOnlyOptions& options) {
  return std::string(name(options.dtype)) + (options.mx ? " mx" : " scale=" + ingot::print(options.scale)) + " " +
         std::string(name(options.layout));
}

WeightScales random_scales(const WeightOnlyOptions& options, std::int64_t n, std::int64_t k, unsigned seed, bool pow2) {
  const ScaleGranularity scale = options.mx ? kRowGroups32 : options.scale;
  WeightScales made;
  if (scale.rows != 0) made.rows = (n + scale.rows - 1) / scale.rows;
  if (scale.cols != 0) made.cols = (k + scale.cols - 1) / scale.cols;
  std::mt19937 engine(seed);
  for (std::int64_t i = 0; i < made.rows * made.cols; ++i) {
    const int exponent = static_cast<int>(engine() % 7) - 5;
    const double mantissa = pow2 || options.mx ? 1.0 : 1.0 + static_cast<double>(engine() % 1000000) * 1e-6;
    made.scale_inv.push_back(static_cast<float>(std::ldexp(mantissa, exponent)));
    made.powers.push_back(static_cast<std::uint8_t>(127 + exponent));
  }
  return made;
}

Matrix values_of(const HostCodes& codes, const WeightScales& scales, const WeightOnlyOptions& options) {
  const ScaleGranularity scale = options.mx ? kRowGroups32 : options.scale;
  Matrix values = zeros(codes.rows, codes.cols);
  for (std::int64_t r = 0; r < codes.rows; ++r) {
    for (std::int64_t c = 0; c < codes.cols; ++c) {
      const std::int64_t down = scale.rows == 0 ? 0 : r / scale.rows;
      const std::int64_t across = scale.cols == 0 ? 0 : c / scale.cols;
      values.at(r, c) = codes.value(r, c) *
                        static_cast<double>(scales.scale_inv[static_cast<std::size_t>(down * scales.cols + across)]);
    }
  }
  return values;
}

WeightOnlyLinear layer_of(const HostCodes& codes, const WeightScales& scales, const WeightOnlyOptions& options,
                          Backend& backend, Stream& stream) {
  const std::int64_t unit = packed_unit(codes.dtype);
  const std::int64_t stride = (codes.cols + unit - 1) / unit * unit;
  const DeviceBytes weight(rows_of_codes(codes, stride), backend, stream);
  const DeviceBytes scale_inv =
      options.mx ? DeviceBytes(scales.powers, backend, stream) : DeviceBytes(scales.scale_inv, backend, stream);
  return WeightOnlyLinear::from_codes(
      backend, weight.view(codes.dtype, codes.rows, codes.cols, stride),
      scale_inv.view(options.mx ? Dtype::e8m0fnu : Dtype::f32, scales.rows, scales.cols), ScaleConvention::dequantize,
      options, stream);
}

DeviceMatrix forward_of(const WeightOnlyLinear& layer, const DeviceMatrix& x, Dtype out, Backend& backend,
                        Stream& stream, const Tensor& bias) {
  DeviceMatrix y = DeviceMatrix::poisoned(x.view().rows, layer.out_features(), out, backend, stream);
  layer.forward(x, y, stream, {.bias = bias});
  return y;
}

}  // namespace ingot::test
