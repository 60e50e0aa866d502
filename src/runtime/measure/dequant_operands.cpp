#include "ingot/runtime/measure/dequant_operands.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <optional>
#include <utility>

#include "ingot/runtime/core/stream.h"
#include "ingot/runtime/dequant/visit_weight.h"
#include "ingot/runtime/measure/timing.h"
#include "ingot/runtime/util/packed_codes.h"

#include "numerics.cuh"

namespace ingot {
namespace {

constexpr std::int64_t kTokens = 16;
constexpr std::int64_t kFeatures = 48;
constexpr double kDequantTolerance = 0x1p-7;

float power_of_two_near(double value) { return static_cast<float>(std::exp2(std::round(std::log2(value)))); }

// At most `most` indices below `count`: the first, the last and odd ones between.
std::vector<std::int64_t> sample(std::int64_t count, std::int64_t most) {
  std::vector<std::int64_t> chosen;
  if (count <= most) {
    for (std::int64_t i = 0; i < count; ++i) chosen.push_back(i);
    return chosen;
  }
  for (std::int64_t i = 0; i + 1 < most; ++i) chosen.push_back(i * (count / most) + i % 3);
  chosen.push_back(count - 1);
  return chosen;
}

}  // namespace

class DequantOperands::Maker {
 public:
  Maker(RandomData& random, std::uint64_t seed) : random_(&random), backend_(&random.backend()), seed_(seed) {}

  // `codes`, if not null, receives the weight's codes, row-major.
  Copy run(const DequantMatmulSpec& spec, const MatmulSize& size, std::optional<OwnedTensor>* codes) {
    const auto& [m, n, k] = size;
    DequantMatmulTensors& tensors = made_.tensors;
    tensors.constant_weight = true;
    tensors.x = values(spec.x, m, k);
    OwnedTensor made = weight(spec, n, k);
    if (is_packed(spec.layout)) {
      tensors.weight = unset(Dtype::u8, 1, packed_weight_bytes(spec.weight, n, k));
      backend_->pack_weight({.weight = spec.weight, .layout = spec.layout}, {.codes = made, .packed = tensors.weight},
                            random_->stream());
    } else {
      tensors.weight = keep(made, spec.weight, n, k);
    }
    backend_->device_api().synchronize(random_->stream());  // before the codes are released
    if (codes != nullptr) *codes = std::move(made);
    if (spec.bias) tensors.bias = values(spec.x, 1, n);
    const auto inputs = spec.pointwise.inputs();
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const PointwiseInput::Kind kind = inputs[i].kind;
      tensors.inputs[i] = kind == PointwiseInput::Kind::row      ? values(Dtype::f32, 1, m)
                          : kind == PointwiseInput::Kind::column ? values(spec.x, 1, n)
                                                                 : values(spec.x, m, n);
    }
    tensors.out = unset(spec.out, m, n);
    return std::move(made_);
  }

 private:
  Tensor unset(Dtype dtype, std::int64_t rows, std::int64_t cols) {
    made_.memory.emplace_back(*backend_, static_cast<std::size_t>(row_bytes(dtype, rows * cols)));
    return matrix(made_.memory.back().data(), dtype, rows, cols, backend_->device());
  }

  Tensor values(Dtype dtype, std::int64_t rows, std::int64_t cols, float deviation = 1.0F) {
    const Tensor tensor = unset(dtype, rows, cols);
    random_->fill(tensor.data, made_.memory.back().bytes(), dtype, ++seed_, deviation);
    return tensor;
  }

  // A copy of the codes, in this copy's memory.
  Tensor keep(const Tensor& codes, Dtype dtype, std::int64_t n, std::int64_t k) {
    const std::int64_t stride = codes.row_stride;
    made_.memory.emplace_back(*backend_, byte_span(codes, "codes"));
    std::vector<std::byte> bytes(made_.memory.back().bytes());
    backend_->device_api().copy_to_host(bytes.data(), codes.data, bytes.size(), random_->stream());
    backend_->device_api().copy_from_host(made_.memory.back().data(), bytes.data(), bytes.size(), random_->stream());
    Tensor kept = matrix(made_.memory.back().data(), dtype, n, k, backend_->device());
    kept.row_stride = stride;
    return kept;
  }

  OwnedTensor weight(const DequantMatmulSpec& spec, std::int64_t n, std::int64_t k) {
    Stream& stream = random_->stream();
    const Buffer cast(*backend_, static_cast<std::size_t>(row_bytes(Dtype::bf16, n * k)));
    random_->fill(cast.data(), cast.bytes(), Dtype::bf16, ++seed_, power_of_two_near(1 / std::sqrt(double(k))));
    const Tensor input = matrix(cast.data(), Dtype::bf16, n, k, backend_->device());
    const std::int64_t unit = packed_unit(spec.weight);
    OwnedTensor codes;
    codes.resize(*backend_, spec.weight, n, k, stream, (k + unit - 1) / unit * unit);
    const std::int64_t count = scale_count(spec.scale, n, k);
    Tensor scales{};
    if (spec.scale_inv == Dtype::e8m0fnu) {
      made_.tensors.scale_inv = unset(Dtype::e8m0fnu, 1, count);
      scales = matrix(made_.tensors.scale_inv.data, Dtype::e8m0fnu, n, count / n, backend_->device());
    } else {
      // Casts scale values of 3.5 standard deviations to the largest code.
      made_.tensors.scale_inv =
          values(Dtype::f32, 1, count,
                 power_of_two_near(3.5 / (static_cast<double>(fp8_max(spec.weight)) * std::sqrt(double(k)))));
    }
    OwnedTensor spare_scales;
    if (scales.data == nullptr) {
      spare_scales = OwnedTensor(*backend_, Dtype::e8m0fnu, n, (k + 31) / 32);
      scales = spare_scales;
    }
    if (is_fp8(spec.weight) && !(spec.scale_inv == Dtype::e8m0fnu && is_mx_element(spec.weight))) {
      const OwnedTensor scale_inv(*backend_, Dtype::f32, 1, 1);
      backend_->cast({.in = Dtype::bf16, .out = spec.weight}, {.input = input, .codes = codes, .scale_inv = scale_inv},
                     stream);
      if (spec.scale_inv == Dtype::e8m0fnu) {  // scales of roughly the right size
        const OwnedTensor others(*backend_, Dtype::e4m3fn, n, k);
        backend_->quantize_mx({.out = Dtype::e4m3fn}, {.input = input, .codes = others, .scales = scales}, stream);
        backend_->device_api().synchronize(stream);
      }
      backend_->device_api().synchronize(stream);
    } else {
      backend_->quantize_mx({.out = spec.weight}, {.input = input, .codes = codes, .scales = scales}, stream);
      backend_->device_api().synchronize(stream);
    }
    return codes;
  }

  RandomData* random_;
  Backend* backend_;
  std::uint64_t seed_;
  Copy made_;
};

DequantOperands::DequantOperands(RandomData& random, Fill fill, const DequantMatmulSpec& spec, const MatmulSize& size)
    : backend_(&random.backend()),
      stream_(&random.stream()),
      fill_(std::move(fill)),
      spec_(spec),
      size_(size),
      tokens_(sample(size.m, kTokens)),
      features_(sample(size.n, kFeatures)) {
  std::optional<OwnedTensor> codes;
  copies_.push_back(Maker(random, 0).run(spec_, size_, nullptr));
  std::size_t bytes = 0;
  for (const Buffer& buffer : copies_.front().memory) bytes += buffer.bytes();
  const int copies = copies_for(bytes);
  for (int i = 1; i < copies; ++i) {
    copies_.push_back(
        Maker(random, static_cast<std::uint64_t>(i) * 1000).run(spec_, size_, i + 1 == copies ? &codes : nullptr));
  }
  compute_expected(codes->view());
}

void DequantOperands::compute_expected(const Tensor& codes) {
  const DequantMatmulTensors& all = copies_.back().tensors;
  std::vector<std::vector<float>> x;
  for (const std::int64_t token : tokens_) x.push_back(fetch(all.x, token));
  const std::vector<float> bias = spec_.bias ? fetch(all.bias, 0) : std::vector<float>();
  std::vector<std::vector<float>> sums(tokens_.size());
  for (const std::int64_t feature : features_) {
    const std::vector<double> w = values(codes, feature);
    for (std::size_t t = 0; t < x.size(); ++t) {
      double sum = bias.empty() ? 0.0 : static_cast<double>(bias[static_cast<std::size_t>(feature)]);
      for (std::size_t i = 0; i < w.size(); ++i) sum += static_cast<double>(x[t][i]) * w[i];
      sums[t].push_back(static_cast<float>(sum));
    }
  }
  const OutputFormat format{.dtype = spec_.out};
  const auto kinds = spec_.pointwise.inputs();
  for (std::size_t t = 0; t < x.size(); ++t) {
    std::vector<std::vector<float>> read;
    for (std::size_t i = 0; i < kinds.size(); ++i) {
      const bool of_matrix = kinds[i].kind == PointwiseInput::Kind::matrix;
      const bool of_rows = kinds[i].kind == PointwiseInput::Kind::row;
      const std::vector<float> row = fetch(all.inputs[i], of_matrix ? tokens_[t] : 0);
      read.emplace_back();
      for (const std::int64_t feature : features_) {
        read.back().push_back(row[static_cast<std::size_t>(of_rows ? tokens_[t] : feature)]);
      }
    }
    std::vector<PointwiseValues> inputs;
    for (const std::vector<float>& values : read) inputs.push_back({.values = values.data()});
    expected_.push_back(right_values(spec_.pointwise, sums[t], inputs, root_mean_square(sums[t]), format));
  }
}

std::vector<double> DequantOperands::values(const Tensor& codes, std::int64_t row) const {
  const std::int64_t k = size_.k;
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(row_bytes(codes.dtype, k)));
  const auto* const from = static_cast<const std::byte*>(codes.data) + row_bytes(codes.dtype, row * codes.row_stride);
  backend_->device_api().copy_to_host(bytes.data(), from, bytes.size(), *stream_);
  std::vector<std::uint8_t> each(static_cast<std::size_t>(k));
  unpack_codes(codes.dtype, bytes, each);
  const std::vector<float> scale_inv = fetch(copies_.back().tensors.scale_inv, 0);
  const ScaleGranularity scale = spec_.scale;
  const std::int64_t groups = scale.cols == 0 ? 1 : (k + scale.cols - 1) / scale.cols;
  const std::int64_t first = scale.rows == 0 ? 0 : row / scale.rows * groups;
  std::vector<double> decoded;
  visit_weight(codes.dtype, [&]<class T>(Type<T>) {
    for (std::int64_t i = 0; i < k; ++i) {
      const std::int64_t group = scale.cols == 0 ? 0 : i / scale.cols;
      decoded.push_back(static_cast<double>(decode(T{each[static_cast<std::size_t>(i)]})) *
                        static_cast<double>(scale_inv[static_cast<std::size_t>(first + group)]));
    }
  });
  return decoded;
}

void DequantOperands::poison() {
  const Tensor& out = copies_.back().tensors.out;
  fill_(out.data, 0xff, byte_span(out, "out"));
}

std::string DequantOperands::fault() {
  const Tensor& out = copies_.back().tensors.out;
  for (std::size_t t = 0; t < tokens_.size(); ++t) {
    const std::vector<float> row = fetch(out, tokens_[t]);
    std::vector<float> actual;
    for (const std::int64_t feature : features_) actual.push_back(row[static_cast<std::size_t>(feature)]);
    for (std::size_t i = 0; i < actual.size(); ++i) {
      if (std::isnan(actual[i]) && !std::isnan(expected_[t][i].value)) {
        return fmt::format("row {}, column {} was not written, or is NaN", tokens_[t], features_[i]);
      }
    }
    const double error = output_error(actual, expected_[t], {.dtype = spec_.out});
    if (!(error <= kDequantTolerance)) {
      return fmt::format("row {}: relative error {:.3g} against float64, but at most {:.3g} is allowed", tokens_[t],
                         error, kDequantTolerance);
    }
  }
  return {};
}

// A row of a matrix without padding, decoded.
std::vector<float> DequantOperands::fetch(const Tensor& tensor, std::int64_t row) const {
  std::vector<float> values(static_cast<std::size_t>(tensor.cols));
  const auto read = [&]<class T>(Type<T>) {
    std::vector<T> elements(values.size());
    const T* const from = static_cast<const T*>(tensor.data) + row * tensor.cols;
    backend_->device_api().copy_to_host(elements.data(), from, elements.size() * sizeof(T), *stream_);
    std::ranges::transform(elements, values.begin(), [](T element) { return to_float(element); });
  };
  if (tensor.dtype == Dtype::e8m0fnu) {
    read(Type<e8m0fnu>{});
  } else {
    visit_high_precision(tensor.dtype, read);
  }
  return values;
}

}  // namespace ingot
