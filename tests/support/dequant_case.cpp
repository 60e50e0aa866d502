#include "support/dequant_case.h"
#include "support/placed_matrix.h"

#include <cstring>

namespace ingot::test {

WeightCodes WeightCodes::random(Dtype dtype, std::int64_t n, std::int64_t k, std::uint64_t seed, bool finite) {
  WeightCodes made{.dtype = dtype, .n = n, .k = k, .codes = std::vector<std::uint8_t>(static_cast<std::size_t>(n * k))};
  const std::uint32_t mask = (1U << static_cast<unsigned>(bits_of(dtype))) - 1U;
  for (std::size_t i = 0; i < made.codes.size(); ++i) {
    std::uint32_t code = static_cast<std::uint32_t>(random_bits(seed, i)) & mask;
    if (finite && is_nan_or_inf(dtype, code)) code = 1;
    made.codes[i] = static_cast<std::uint8_t>(code);
  }
  return made;
}

GuardedMatrix WeightCodes::rows(std::int64_t padding, std::int64_t offset) const {
  const std::int64_t stride = row_stride(padding);
  GuardedMatrix bytes(Dtype::u8, n, row_bytes(dtype, k), stride * bits_of(dtype) / 8 - row_bytes(dtype, k), offset);
  const auto width = static_cast<unsigned>(bits_of(dtype));
  const std::uint32_t mask = (1U << width) - 1U;
  for (std::int64_t r = 0; r < n; ++r) {
    std::byte* const row = bytes.element(r, 0);
    for (std::int64_t c = 0; c < k; ++c) {
      const auto at_bit = static_cast<unsigned>(c) * width;
      const unsigned shift = at_bit % 8;
      // A code of six bits may span two bytes.
      std::byte* const first = row + at_bit / 8;
      const std::size_t touched = shift + width > 8 ? 2 : 1;
      std::uint32_t pair = 0;
      std::memcpy(&pair, first, touched);
      pair = (pair & ~(mask << shift)) | ((at(r, c) & mask) << shift);
      std::memcpy(first, &pair, touched);
    }
  }
  return bytes;
}

std::int64_t WeightCodes::row_stride(std::int64_t padding) const {
  const std::int64_t unit = packed_unit(dtype);
  return (k + padding + unit - 1) / unit * unit;
}

Tensor WeightCodes::view(const GuardedMatrix& bytes, void* base, Device device, std::int64_t padding) const {
  Tensor tensor = bytes.view(base, device);
  tensor.dtype = dtype;
  tensor.cols = k;
  tensor.row_stride = row_stride(padding);
  return tensor;
}

DequantData::DequantData(const DequantCase& c)
    : case_(c),
      x(c.spec.x, c.m, c.k, c.placement.x_padding, c.placement.x_offset),
      weight(WeightCodes::random(c.spec.weight, c.n, c.k, c.seed)),
      scale_inv(c.spec.scale_inv, 1, scale_count(c.spec.scale, c.n, c.k)) {
  for (std::int64_t r = 0; r < c.m; ++r) {
    for (std::int64_t col = 0; col < c.k; ++col) {
      x.set_bits(r, col, encode_input(c.spec.x, random_normal(c.seed + 7, static_cast<std::uint64_t>(r * c.k + col))));
    }
  }
  fill_scale_inv();
  if (c.faulty) add_faults();
  if (c.spec.bias) bias = vector_of(c.spec.x, c.n, 11);
  for (const PointwiseInput& input : c.spec.pointwise.inputs()) add_input(input);
}

bool DequantData::has_nan(std::int64_t row) const {
  for (std::int64_t k = 0; k < case_.k; ++k) {
    if (std::isnan(weight.value(row, k))) return true;
  }
  return false;
}

double DequantData::factor(std::int64_t row, std::int64_t k) const {
  const ScaleGranularity scale = case_.spec.scale;
  const std::int64_t groups = scale.cols == 0 ? 1 : (case_.k + scale.cols - 1) / scale.cols;
  const std::int64_t of_row = scale.rows == 0 ? 0 : row / scale.rows;
  return scale_inv.value(0, of_row * groups + (scale.cols == 0 ? 0 : k / scale.cols));
}

std::vector<DequantData::Expected> DequantData::expected() const {
  std::vector<double> values(static_cast<std::size_t>(case_.n * case_.k));
  for (std::int64_t n = 0; n < case_.n; ++n) {
    for (std::int64_t k = 0; k < case_.k; ++k) {
      values[static_cast<std::size_t>(n * case_.k + k)] = weight.value(n, k) * factor(n, k);
    }
  }
  std::vector<double> xs(static_cast<std::size_t>(case_.k));
  std::vector<Expected> all;
  for (std::int64_t m = 0; m < case_.m; ++m) {
    for (std::int64_t k = 0; k < case_.k; ++k) xs[static_cast<std::size_t>(k)] = x.value(m, k);
    for (std::int64_t n = 0; n < case_.n; ++n) {
      double sum = 0;
      double sizes = 0;
      const double* const row = values.data() + n * case_.k;
      for (std::size_t k = 0; k < xs.size(); ++k) {
        sum += xs[k] * row[k];
        sizes += std::fabs(xs[k] * row[k]);
      }
      all.push_back(finish(m, n, sum, static_cast<double>(case_.k + 8) * 0x1p-24 * sizes));
    }
  }
  return all;
}

void DequantData::fill_scale_inv() {
  const double unit = 1.0 / static_cast<double>(fp8_max(case_.spec.weight));
  for (std::int64_t i = 0; i < scale_inv.cols(); ++i) {
    const std::uint64_t bits = random_bits(case_.seed + 3, static_cast<std::uint64_t>(i));
    if (case_.spec.scale_inv == Dtype::e8m0fnu) {
      // Some are 2 or more, for which kernels decode in another way.
      const int large = bits / 4 % 64 == 0 ? 6 : 0;
      scale_inv.set_bits(0, i,
                         static_cast<std::uint32_t>(127 + std::ilogb(unit) - 1 + static_cast<int>(bits % 4) + large));
    } else {
      scale_inv.set_bits(
          0, i,
          float_bits(static_cast<float>(unit * (0.25 + random_unit(case_.seed + 3, static_cast<std::uint64_t>(i))))));
    }
  }
}

void DequantData::add_faults() {
  const Dtype dtype = case_.spec.weight;
  for (std::int64_t row = 0; row < case_.n; ++row) {
    const std::uint64_t bits = random_bits(case_.seed + 5, static_cast<std::uint64_t>(row));
    if (row % 5 != 1 || case_.k == 0) continue;
    for (std::uint32_t code = 0; code < 256; ++code) {
      const double value = decode_slowly(dtype, code);
      const bool wanted =
          row % 2 == 0 ? std::isnan(value) : std::isinf(value) && (bits & 64U) == (code >= 128 ? 64U : 0U);
      if (is_sub_byte(dtype) || !wanted) continue;
      weight.at(row, static_cast<std::int64_t>((bits >> 8U) % static_cast<std::uint64_t>(case_.k))) =
          static_cast<std::uint8_t>(code);
    }
  }
}

GuardedMatrix DequantData::vector_of(Dtype dtype, std::int64_t count, std::uint64_t seed) const {
  return matrix_of(dtype, 1, count, seed);
}

GuardedMatrix DequantData::matrix_of(Dtype dtype, std::int64_t rows, std::int64_t cols, std::uint64_t seed) const {
  GuardedMatrix made(dtype, rows, cols);
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < cols; ++c) {
      made.set_bits(r, c,
                    encode_input(dtype, random_normal(case_.seed + seed, static_cast<std::uint64_t>(r * cols + c))));
    }
  }
  return made;
}

void DequantData::add_input(const PointwiseInput& input) {
  const std::uint64_t seed = 20 + inputs.size();
  switch (input.kind) {
    case PointwiseInput::Kind::matrix: inputs.push_back(matrix_of(case_.spec.x, case_.m, case_.n, seed)); break;
    case PointwiseInput::Kind::row: inputs.push_back(vector_of(Dtype::f32, case_.m, seed)); break;
    default: inputs.push_back(vector_of(case_.spec.x, case_.n, seed)); break;
  }
}

DequantData::Expected DequantData::finish(std::int64_t m, std::int64_t n, double sum, double bound) const {
  const DequantMatmulSpec& spec = case_.spec;
  if (spec.bias) {
    sum += bias.value(0, n);
    bound += 0x1p-24 * std::fabs(sum);
  }
  if (spec.pointwise) {
    std::vector<double> others;
    const auto kinds = spec.pointwise.inputs();
    for (std::size_t i = 0; i < kinds.size(); ++i) {
      const PointwiseInput::Kind kind = kinds[i].kind;
      others.push_back(kind == PointwiseInput::Kind::matrix ? inputs[i].value(m, n)
                       : kind == PointwiseInput::Kind::row  ? inputs[i].value(0, m)
                                                            : inputs[i].value(0, n));
    }
    const double value = evaluate(spec.pointwise, sum, others);
    // The steepest slope nearby.
    const double around = std::max({bound, 1e-3 * std::fabs(sum), 1e-6});
    const double slope = std::max(std::fabs(evaluate(spec.pointwise, sum + around, others) - value),
                                  std::fabs(evaluate(spec.pointwise, sum - around, others) - value)) /
                         around;
    bound = bound * (1.25 * slope + 0.1) + 0x1p-14 * std::fabs(value) + 1e-7;
    sum = value;
  }
  const double rounding = unit_roundoff(spec.out) * std::fabs(sum) + (spec.out == Dtype::f16 ? 0x1p-25 : 0.0);
  return {sum, (bound + rounding) * 1.01};
}

std::string fault_of_outputs(const DequantData& data, const GuardedMatrix& out,
                             const std::vector<DequantData::Expected>& expected) {
  if (std::string found = out.damage(); !found.empty()) return found;
  return fault_of_rows(data, out, 0, expected);
}

std::string fault_of_rows(const DequantData& data, const GuardedMatrix& out, std::int64_t first,
                          const std::vector<DequantData::Expected>& expected) {
  const DequantCase& c = data.of();
  const double largest = c.spec.out == Dtype::f16 ? 65504.0 : 3e38;
  for (std::int64_t m = 0; m < c.m; ++m) {
    for (std::int64_t n = 0; n < c.n; ++n) {
      const auto [value, bound] = expected[static_cast<std::size_t>(m * c.n + n)];
      const double given = out.value(first + m, n);
      const bool right = std::isnan(value)   ? std::isnan(given)
                         : std::isinf(value) ? given == value
                                             : std::fabs(given - value) <= bound ||
                                                   (std::isinf(given) && std::fabs(value) + bound > largest);
      if (!right) {
        return "out(" + std::to_string(first + m) + ", " + std::to_string(n) + ") is " + std::to_string(given) +
               ", not " + std::to_string(value) + " within " + std::to_string(bound);
      }
    }
  }
  return {};
}

PlacedDequant::PlacedDequant(const DequantData& data, Backend& backend, Stream& stream)
    : data_(&data),
      backend_(&backend),
      out_(data.of().spec.out, data.of().m, data.of().n, data.of().placement.out_padding,
           data.of().placement.out_offset) {
  const DequantCase& c = data.of();
  tensors_.x = place(data.x, memory_, backend, stream);
  tensors_.scale_inv = place(data.scale_inv, memory_, backend, stream);
  if (c.spec.bias) tensors_.bias = place(data.bias, memory_, backend, stream);
  for (std::size_t i = 0; i < data.inputs.size(); ++i)
    tensors_.inputs[i] = place(data.inputs[i], memory_, backend, stream);
  const GuardedMatrix codes = data.weight.rows(c.placement.weight_padding, c.placement.weight_offset);
  tensors_.weight = place(codes, memory_, backend, stream);
  tensors_.weight = data.weight.view(codes, memory_.back().data(), backend.device(), c.placement.weight_padding);
  if (is_packed(c.spec.layout)) {
    const std::int64_t bytes = packed_weight_bytes(c.spec.weight, c.n, c.k);
    Buffer packed(backend, static_cast<std::size_t>(bytes));
    const Tensor target = vector(packed.data(), Dtype::u8, bytes, backend.device());
    backend.pack_weight({.weight = c.spec.weight, .layout = c.spec.layout},
                        {.codes = tensors_.weight, .packed = target}, stream);
    tensors_.weight = target;
    memory_.push_back(std::move(packed));
  }
  tensors_.out = place(out_, memory_, backend, stream);
  out_memory_ = memory_.size() - 1;
}

void PlacedDequant::poison(Stream& stream) {
  backend_->device_api().copy_from_host(memory_[out_memory_].data(), out_.bytes().data(), out_.bytes().size(), stream);
}

GuardedMatrix PlacedDequant::out(Stream& stream) {
  GuardedMatrix fetched = out_;
  backend_->device_api().copy_to_host(fetched.bytes().data(), memory_[out_memory_].data(), fetched.bytes().size(),
                                      stream);
  return fetched;
}

std::string describe(const DequantCase& c) {
  return print(c.spec) + " " + std::to_string(c.m) + "x" + std::to_string(c.n) + "x" + std::to_string(c.k);
}

}  // namespace ingot::test
