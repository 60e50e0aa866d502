#include "linear_step.h"

#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <span>
#include <utility>

#include "ingot/runtime/measure/timing.h"

#include "numerics.cuh"

namespace ingot::bench {
namespace {

constexpr unsigned char kResultPoison = 0xa5;
constexpr double kLeastSqnr = 15;
constexpr std::int64_t kSampledRows = 8;

std::size_t bytes_of(const Tensor& tensor) { return byte_span(tensor, "benchmark tensor"); }

std::vector<float> row_of(MeasuredGpu& gpu, const Tensor& tensor, std::int64_t row) {
  std::vector<u16> bits(static_cast<std::size_t>(tensor.cols));
  gpu.device_api().copy_to_host(bits.data(), static_cast<const u16*>(tensor.data) + row * tensor.row_stride,
                                bits.size() * sizeof(u16), gpu.stream());
  std::vector<float> values(bits.size());
  for (std::size_t i = 0; i < bits.size(); ++i) values[i] = to_float(bf16{bits[i]});
  return values;
}

std::vector<float> sampled_rows(MeasuredGpu& gpu, const Tensor& tensor) {
  std::vector<float> values;
  for (std::int64_t i = 0; i < kSampledRows; ++i) {
    const std::vector<float> row = row_of(gpu, tensor, i * (tensor.rows - 1) / (kSampledRows - 1));
    values.insert(values.end(), row.begin(), row.end());
  }
  return values;
}

double sqnr(std::span<const float> expected, std::span<const float> found) {
  double signal = 0;
  double noise = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double difference = static_cast<double>(found[i]) - static_cast<double>(expected[i]);
    signal += static_cast<double>(expected[i]) * static_cast<double>(expected[i]);
    noise += difference * difference;
  }
  return noise == 0 ? 1000 : 10 * std::log10(signal / noise);
}

std::vector<double> normalised(const std::vector<float>& row) {
  double mean = 0;
  double square = 0;
  for (const float value : row) mean += static_cast<double>(value);
  mean /= static_cast<double>(row.size());
  for (const float value : row) square += (static_cast<double>(value) - mean) * (static_cast<double>(value) - mean);
  const double rstd = 1 / std::sqrt(square / static_cast<double>(row.size()) + 1e-5);
  std::vector<double> values;
  for (const float value : row) values.push_back((static_cast<double>(value) - mean) * rstd);
  return values;
}

}  // namespace

StepTensors::StepTensors(MeasuredGpu& gpu, RandomData& random, const LinearSize& size, std::uint64_t seed)
    : input(gpu.backend(), Dtype::bf16, size.tokens, size.in_features),
      weight(gpu.backend(), Dtype::bf16, size.out_features, size.in_features),
      grad_output(gpu.backend(), Dtype::bf16, size.tokens, size.out_features),
      output(gpu.backend(), Dtype::bf16, size.tokens, size.out_features),
      grad_input(gpu.backend(), Dtype::bf16, size.tokens, size.in_features),
      grad_weight(gpu.backend(), Dtype::bf16, size.out_features, size.in_features) {
  const auto fill = [&](const OwnedTensor& tensor, std::uint64_t which, float deviation) {
    random.fill(tensor.view().data, bytes_of(tensor), Dtype::bf16, seed + which, deviation);
  };
  fill(input, 0, 1.0F);
  fill(weight, 1, 1.0F / std::sqrt(static_cast<float>(size.in_features)));
  fill(grad_output, 2, 1.0F);
}

void StepTensors::poison(MeasuredGpu& gpu) {
  for (const OwnedTensor* result : {&output, &grad_input, &grad_weight}) {
    gpu.fill(result->view().data, kResultPoison, bytes_of(*result));
  }
}

std::vector<std::unique_ptr<StepTensors>> make_copies(MeasuredGpu& gpu, RandomData& random, const LinearSize& size) {
  const double elements = static_cast<double>(size.tokens) * static_cast<double>(size.in_features + size.out_features) +
                          static_cast<double>(size.in_features) * static_cast<double>(size.out_features);
  std::vector<std::unique_ptr<StepTensors>> copies;
  const int count = copies_for(static_cast<std::size_t>(4 * elements));
  for (int i = 0; i < count; ++i) {
    copies.push_back(std::make_unique<StepTensors>(gpu, random, size, static_cast<std::uint64_t>(i) * 1000));
  }
  return copies;
}

RecipeSteps::RecipeSteps(MeasuredGpu& gpu, const LinearBenchCase& c, const Recipe& recipe,
                         const std::vector<std::unique_ptr<StepTensors>>& copies, Stream* side, double fused_products)
    : gpu_(&gpu), delayed_(recipe.name == "delayed"), copies_(&copies) {
  const LinearShape shape{.in_features = c.size.in_features, .out_features = c.size.out_features};
  for (std::size_t i = 0; i < copies.size(); ++i) {
    Layer layer{.delayed = std::make_unique<DelayedScaling>(gpu.backend()), .linear = {}, .norm_linear = {}};
    LinearOptions options{
        .delayed = layer.delayed.get(), .workspace = &workspace_, .side = side, .fused_products = fused_products};
    if (c.work == LinearWork::linear) {
      layer.linear = std::make_unique<Float8Linear>(gpu.backend(), shape, recipe.config, options);
    } else {
      options.fusion = {.epilogue = parse_pointwise("sigmoid(x)"), .fast_math = true};
      layer.norm_linear = std::make_unique<LayerNormLinear>(
          gpu.backend(), NormLinearShape{.linear = shape, .affine = false}, recipe.config, options);
    }
    layers_.push_back(std::move(layer));
  }
}

void RecipeSteps::enqueue(int copy) {
  Layer& layer = layers_[static_cast<std::size_t>(copy)];
  const StepTensors& t = *(*copies_)[static_cast<std::size_t>(copy)];
  Stream& stream = gpu_->stream();
  if (layer.linear) {
    layer.linear->weight_changed();
    layer.linear->forward({.input = t.input, .weight = t.weight, .output = t.output}, stream);
    layer.linear->backward({.grad_output = t.grad_output, .grad_input = t.grad_input, .grad_weight = t.grad_weight},
                           stream);
  } else {
    layer.norm_linear->weight_changed();
    layer.norm_linear->forward({.input = t.input, .weight = t.weight, .output = t.output}, stream);
    layer.norm_linear->backward(
        {.grad_output = t.grad_output, .grad_input = t.grad_input, .grad_weight = t.grad_weight}, stream);
  }
  if (delayed_) layer.delayed->sync_amax_history(stream);
}

RotatedCall RecipeSteps::call() {
  return {.copies = static_cast<int>(copies_->size()), .enqueue = [this](int copy) { enqueue(copy); }};
}

std::size_t RecipeSteps::saved_bytes() const {
  return layers_[0].linear ? layers_[0].linear->saved_bytes() : layers_[0].norm_linear->saved_bytes();
}

StepSample sample(MeasuredGpu& gpu, const StepTensors& tensors) {
  return {.output = sampled_rows(gpu, tensors.output),
          .grad_input = sampled_rows(gpu, tensors.grad_input),
          .grad_weight = sampled_rows(gpu, tensors.grad_weight)};
}

std::string fault_of_baseline(MeasuredGpu& gpu, const LinearBenchCase& c, const StepTensors& tensors) {
  const std::int64_t rows = tensors.output.view().rows;
  const std::int64_t cols = tensors.output.view().cols;
  for (std::int64_t i = 0; i < kSampledRows; ++i) {
    const std::int64_t row = i * (rows - 1) / (kSampledRows - 1);
    const std::int64_t col = (i * 7919 + 13) % cols;
    const std::vector<float> x = row_of(gpu, tensors.input, row);
    const std::vector<float> w = row_of(gpu, tensors.weight, col);
    const bool fused = c.work == LinearWork::norm_linear_sigmoid;
    const std::vector<double> values = fused ? normalised(x) : std::vector<double>(x.begin(), x.end());
    double sum = 0;
    for (std::size_t k = 0; k < w.size(); ++k) sum += values[k] * static_cast<double>(w[k]);
    const double expected = fused ? 1 / (1 + std::exp(-sum)) : sum;
    const double found = static_cast<double>(row_of(gpu, tensors.output, row)[static_cast<std::size_t>(col)]);
    // Roundings to bf16: of the output, of the sum, and of the summands, whose errors add up as random ones do.
    if (!(std::abs(found - expected) <= 0.02 * (1 + std::abs(expected)))) {
      return fmt::format("output ({}, {}) is {}, but must be {}", row, col, found, expected);
    }
  }
  return {};
}

StepQuality quality(const StepSample& baseline, const StepSample& found) {
  return {.output_db = sqnr(baseline.output, found.output),
          .grad_input_db = sqnr(baseline.grad_input, found.grad_input),
          .grad_weight_db = sqnr(baseline.grad_weight, found.grad_weight)};
}

std::string fault(const StepQuality& found) {
  for (const auto& [what, db] : {std::pair{"output", found.output_db},
                                 {"grad_input", found.grad_input_db},
                                 {"grad_weight", found.grad_weight_db}}) {
    if (!(db >= kLeastSqnr)) return fmt::format("{} has {:.1f} dB against bf16's", what, db);
  }
  return {};
}

}  // namespace ingot::bench
