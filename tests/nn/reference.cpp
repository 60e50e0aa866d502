#include "nn/reference.h"

namespace ingot::test {

Matrix zeros(std::int64_t rows, std::int64_t cols) {
  return {rows, cols, std::vector<double>(static_cast<std::size_t>(rows * cols), 0.0)};
}

Matrix transpose(const Matrix& m) {
  Matrix t = zeros(m.cols, m.rows);
  for (std::int64_t r = 0; r < m.rows; ++r) {
    for (std::int64_t c = 0; c < m.cols; ++c) t.at(c, r) = m.at(r, c);
  }
  return t;
}

std::uint32_t encode_bits(double value, Dtype dtype) {
  const float f = static_cast<float>(value);
  switch (dtype) {
    case Dtype::bf16: return from_float<bf16>(f).bits;
    case Dtype::f16: return from_float<f16>(f).bits;
    default: return float_bits(f);
  }
}

Matrix rounded(Matrix m, Dtype dtype) {
  for (double& value : m.values) value = decode_reference(dtype, encode_bits(value, dtype));
  return m;
}

DeviceMatrix::DeviceMatrix(const Matrix& m, Dtype dtype, Backend& backend, Stream& stream, std::int64_t row_stride)
    : owned_(backend, dtype, m.rows, std::max(row_stride, m.cols)), backend_(&backend) {
  view_ = owned_.view();
  view_.cols = m.cols;
  write(m, stream);
}

DeviceMatrix DeviceMatrix::poisoned(std::int64_t rows, std::int64_t cols, Dtype dtype, Backend& backend,
                                    Stream& stream) {
  DeviceMatrix result(Matrix{rows, cols, std::vector<double>(static_cast<std::size_t>(rows * cols))}, dtype, backend,
                      stream);
  result.poison(stream);
  return result;
}

void DeviceMatrix::write(const Matrix& m, Stream& stream) {
  std::vector<std::uint8_t> bytes(size_in_bytes(), 0xff);
  for (std::int64_t r = 0; r < view_.rows; ++r) {
    for (std::int64_t c = 0; c < view_.cols; ++c) {
      const std::uint32_t bits = encode_bits(m.at(r, c), view_.dtype);
      std::memcpy(&bytes[offset(r, c)], &bits, element());
    }
  }
  backend_->device_api().copy_from_host(view_.data, bytes.data(), bytes.size(), stream);
}

void DeviceMatrix::poison(Stream& stream) {
  const std::vector<std::uint8_t> bytes(size_in_bytes(), 0xff);
  backend_->device_api().copy_from_host(view_.data, bytes.data(), bytes.size(), stream);
}

std::vector<std::uint8_t> DeviceMatrix::bytes(Stream& stream) const {
  std::vector<std::uint8_t> bytes(size_in_bytes());
  backend_->device_api().copy_to_host(bytes.data(), view_.data, bytes.size(), stream);
  backend_->device_api().synchronize(stream);
  return bytes;
}

Matrix DeviceMatrix::read(Stream& stream) const {
  const std::vector<std::uint8_t> from = bytes(stream);
  Matrix m = zeros(view_.rows, view_.cols);
  for (std::int64_t r = 0; r < view_.rows; ++r) {
    for (std::int64_t c = 0; c < view_.cols; ++c) {
      std::uint32_t bits = 0;
      std::memcpy(&bits, &from[offset(r, c)], element());
      m.at(r, c) = decode_reference(view_.dtype, bits);
    }
  }
  return m;
}

std::size_t DeviceMatrix::offset(std::int64_t r, std::int64_t c) const {
  return static_cast<std::size_t>(r * view_.row_stride + c) * element();
}

std::size_t DeviceMatrix::size_in_bytes() const {
  return view_.data == nullptr ? 0 : static_cast<std::size_t>(view_.rows * view_.row_stride) * element();
}

double fp8_max_reference(Dtype dtype) {
  return dtype == Dtype::e4m3fn ? 448.0 : dtype == Dtype::e4m3fnuz ? 240.0 : 57344.0;
}

Quantized quantized(const Matrix& m, const Cast& cast) {
  Quantized result{m, m};
  const auto extent = [](int of_scale, std::int64_t all) {
    return of_scale == 0 ? std::max<std::int64_t>(all, 1) : of_scale;
  };
  const std::int64_t rows = extent(cast.granularity.rows, m.rows);
  const std::int64_t cols = extent(cast.granularity.cols, m.cols);
  for (std::int64_t first_row = 0; first_row < m.rows; first_row += rows) {
    for (std::int64_t first_col = 0; first_col < m.cols; first_col += cols) {
      const auto each = [&](auto&& act) {
        for (std::int64_t r = first_row; r < std::min(first_row + rows, m.rows); ++r) {
          for (std::int64_t c = first_col; c < std::min(first_col + cols, m.cols); ++c) act(r, c);
        }
      };
      double amax = 0;
      each([&](std::int64_t r, std::int64_t c) { amax = std::max(amax, std::abs(m.at(r, c))); });
      float scale = static_cast<float>(fp8_max_reference(cast.dtype) / std::max(amax, 1e-12));
      if (cast.pow2) scale = std::exp2(std::floor(std::log2(scale)));
      if (cast.scaling == Scaling::fixed) scale = cast.scale;
      each([&](std::int64_t r, std::int64_t c) {
        const float largest = static_cast<float>(fp8_max_reference(cast.dtype));
        const float scaled = std::clamp(static_cast<float>(m.at(r, c)) * scale, -largest, largest);
        result.codes.at(r, c) = decode_reference(cast.dtype, encode_reference(cast.dtype, scaled));
        result.scale_inv.at(r, c) = static_cast<double>(1.0F / scale);
      });
    }
  }
  return result;
}

Matrix fake_quantized(const Matrix& m, const Cast& cast) {
  Quantized parts = quantized(m, cast);
  for (std::size_t i = 0; i < m.values.size(); ++i) parts.codes.values[i] *= parts.scale_inv.values[i];
  return parts.codes;
}

ExpectedMatrix expected_gemm(const Matrix& a, const Matrix& b, const Matrix* bias, Dtype out) {
  ExpectedMatrix result{zeros(a.rows, b.rows), zeros(a.rows, b.rows)};
  for (std::int64_t m = 0; m < a.rows; ++m) {
    for (std::int64_t n = 0; n < b.rows; ++n) {
      double sum = 0;
      double magnitude = 0;
      for (std::int64_t k = 0; k < a.cols; ++k) {
        sum += a.at(m, k) * b.at(n, k);
        magnitude += std::abs(a.at(m, k) * b.at(n, k));
      }
      if (bias != nullptr) {
        sum += bias->at(0, n);
        magnitude += std::abs(bias->at(0, n));
      }
      // One rounding per product, addition, factor (two of them) and bias, and one for the result.
      const auto terms = static_cast<double>(a.cols + 2 * (a.cols / 128));  // each group has its own factor
      const double accumulated = (terms + 5) * std::ldexp(1, -24) * magnitude;
      result.value.at(m, n) = sum;
      result.bound.at(m, n) = accumulated + unit_roundoff(out) * (std::abs(sum) + accumulated) + smallest_of(out);
    }
  }
  return result;
}

ExpectedMatrix expected_product(const Matrix& a, const Matrix& b, const std::optional<Cast>& cast_a,
                                const std::optional<Cast>& cast_b, const Matrix* bias, Dtype out, bool a_transposed,
                                bool b_transposed) {
  const Matrix as_read_a = a_transposed ? transpose(a) : a;
  const Matrix as_read_b = b_transposed ? transpose(b) : b;
  return expected_gemm(cast_a ? fake_quantized(as_read_a, *cast_a) : as_read_a,
                       cast_b ? fake_quantized(as_read_b, *cast_b) : as_read_b, bias, out);
}

ExpectedMatrix expected_output(const LinearConfig& config, const Matrix& input, const Matrix& weight,
                               const Matrix* bias, Dtype out) {
  return expected_product(input, weight, config.output.a, config.output.b, bias, out, false, false);
}

ExpectedMatrix expected_folded(const Matrix& a, const Matrix& b_of_forward, const Cast& cast_a, const Cast& cast_b,
                               Dtype out, bool a_transposed) {
  const Quantized b = quantized(b_of_forward, cast_b);
  Matrix folded = a_transposed ? transpose(a) : a;
  for (std::int64_t r = 0; r < folded.rows; ++r) {
    for (std::int64_t k = 0; k < folded.cols; ++k) {
      const float factor = b.scale_inv.cols == 0 ? 1.0F : static_cast<float>(b.scale_inv.at(k, 0));
      folded.at(r, k) = static_cast<float>(folded.at(r, k)) * factor;
    }
  }
  return expected_gemm(fake_quantized(folded, cast_a), transpose(b.codes), nullptr, out);
}

ExpectedMatrix expected_grad_input(const LinearConfig& config, const Matrix& grad_output, const Matrix& weight,
                                   Dtype out) {
  if (config.weight == OtherCodes::folded) {
    return expected_folded(grad_output, weight, *config.grad_input.a, *config.output.b, out, false);
  }
  return expected_product(grad_output, weight, config.grad_input.a, config.grad_input.b, nullptr, out, false, true);
}

ExpectedMatrix expected_grad_weight(const LinearConfig& config, const Matrix& grad_output, const Matrix& input,
                                    Dtype out) {
  if (config.input == OtherCodes::folded) {
    return expected_folded(grad_output, input, *config.grad_weight.a, *config.output.a, out, true);
  }
  return expected_product(grad_output, input, config.grad_weight.a, config.grad_weight.b, nullptr, out, true, true);
}

ExpectedMatrix expected_grad_bias(const Matrix& grad_output, Dtype out) {
  Matrix ones = zeros(1, grad_output.rows);
  for (double& value : ones.values) value = 1;
  return expected_gemm(ones, transpose(grad_output), nullptr, out);
}

void check_within(const Matrix& actual, const ExpectedMatrix& expected, const std::string& what) {
  BOOST_REQUIRE_MESSAGE(actual.rows == expected.value.rows && actual.cols == expected.value.cols,
                        what << " is [" << actual.rows << ", " << actual.cols << "], expected [" << expected.value.rows
                             << ", " << expected.value.cols << "]");
  for (std::int64_t r = 0; r < actual.rows; ++r) {
    for (std::int64_t c = 0; c < actual.cols; ++c) {
      const double difference = std::abs(actual.at(r, c) - expected.value.at(r, c));
      if (difference <= expected.bound.at(r, c)) continue;
      BOOST_ERROR(what << " differs first at index " << r * actual.cols + c << ", (" << r << ", " << c
                       << "): " << actual.at(r, c) << ", expected " << expected.value.at(r, c) << " +- "
                       << expected.bound.at(r, c));
      return;
    }
  }
  BOOST_TEST_PASSPOINT();
}

double sqnr(const Matrix& reference, const Matrix& actual) {
  double signal = 0;
  double noise = 0;
  for (std::size_t i = 0; i < reference.values.size(); ++i) {
    signal += reference.values[i] * reference.values[i];
    const double difference = reference.values[i] - actual.values[i];
    noise += difference * difference;
  }
  return 10 * std::log10(signal / noise);
}

Matrix Random::normal(std::int64_t rows, std::int64_t cols, Dtype dtype, double deviation) {
  std::normal_distribution<double> distribution(0, deviation);
  return fill(rows, cols, dtype, distribution);
}

Matrix Random::weight(std::int64_t rows, std::int64_t cols, Dtype dtype) {
  const double range = 1 / std::sqrt(static_cast<double>(std::max<std::int64_t>(cols, 1)));
  std::uniform_real_distribution<double> distribution(-range, range);
  return fill(rows, cols, dtype, distribution);
}

}  // namespace ingot::test
