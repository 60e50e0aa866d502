// The model of examples/lora in float64, forward and backward, written from its description: the loss of a batch and
// the gradients of the adapters. Frozen weights in FP8 are what their codes and scale_inv mean.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ingot/nn/recipe/recipes.h"
#include "ingot/runtime/context/context.h"
#include "model.h"
#include "nn/reference.h"

namespace lora::test {

using ingot::test::Matrix;
using ingot::test::transpose;
using ingot::test::zeros;

inline constexpr ModelShape kShape{.tokens = 48, .features = 32, .hidden = 64, .classes = 32, .rank = 16};

inline std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

// a[m, k] @ b[n, k]^T
inline Matrix times(const Matrix& a, const Matrix& b) {
  Matrix c = zeros(a.rows, b.rows);
  for (std::int64_t m = 0; m < a.rows; ++m) {
    for (std::int64_t n = 0; n < b.rows; ++n) {
      for (std::int64_t k = 0; k < a.cols; ++k) c.at(m, n) += a.at(m, k) * b.at(n, k);
    }
  }
  return c;
}

inline Matrix plus(Matrix a, const Matrix& b, double by) {
  for (std::size_t i = 0; i < a.values.size(); ++i) a.values[i] += by * b.values[i];
  return a;
}

// f32 or bf16, from the device.
inline Matrix read(const ingot::Tensor& tensor, ingot::Stream& stream) {
  Matrix result = zeros(tensor.rows, tensor.cols);
  const std::size_t bytes = tensor.dtype == ingot::Dtype::f32 ? 4 : 2;
  std::vector<std::uint8_t> data(result.values.size() * bytes);
  stream.device_api().copy_to_host(data.data(), tensor.data, data.size(), stream);
  stream.device_api().synchronize(stream);
  for (std::size_t i = 0; i < result.values.size(); ++i) {
    std::array<std::uint8_t, 4> f32{};  // a bf16 is its upper half
    std::copy_n(data.data() + i * bytes, bytes, f32.begin() + 4 - static_cast<std::ptrdiff_t>(bytes));
    result.values[i] = std::bit_cast<float>(f32);
  }
  return result;
}

// What a frozen weight's codes mean: code * scale_inv.
inline Matrix decoded(const ingot::Float8WeightState& state) {
  const ingot::ScaleGranularity scale = state.scale;
  const std::int64_t rows = scale == ingot::kBlocks ? 128 : scale == ingot::kRowwise ? 1 : state.out_features;
  const std::int64_t cols = scale == ingot::kBlocks ? 128 : state.in_features;
  const std::int64_t across = (state.in_features + cols - 1) / cols;
  Matrix result = zeros(state.out_features, state.in_features);
  for (std::int64_t r = 0; r < result.rows; ++r) {
    for (std::int64_t c = 0; c < result.cols; ++c) {
      const auto code = static_cast<std::uint8_t>(state.codes[index(r * result.cols + c)]);
      result.at(r, c) =
          ingot::test::decode_reference(state.dtype, code) * state.scale_inv[index(r / rows * across + c / cols)];
    }
  }
  return result;
}

struct Weights {
  Matrix frozen, down, up;
};

struct Expected {
  double loss = 0;
  std::array<Matrix, 4> gradients;  // in the order of Model::parameters()
};

// The adapter's scale is 2.
inline Expected reference(const Matrix& x, const std::vector<std::uint32_t>& labels, const Weights& first,
                          const Weights& second) {
  constexpr double kScale = 2;
  const Matrix low1 = times(x, first.down);
  const Matrix before = plus(times(x, first.frozen), times(low1, first.up), kScale);
  Matrix hidden = before;
  Matrix slope = before;
  for (std::size_t i = 0; i < hidden.values.size(); ++i) {
    const double s = 1 / (1 + std::exp(-before.values[i]));
    hidden.values[i] = before.values[i] * s;
    slope.values[i] = s * (1 + before.values[i] * (1 - s));
  }
  const Matrix low2 = times(hidden, second.down);
  Matrix grad = plus(times(hidden, second.frozen), times(low2, second.up), kScale);  // of the logits, from here on
  Expected result;
  for (std::int64_t row = 0; row < grad.rows; ++row) {
    double sum = 0;
    for (std::int64_t c = 0; c < grad.cols; ++c) sum += std::exp(grad.at(row, c));
    const std::int64_t label = labels[index(row)];
    result.loss += (std::log(sum) - grad.at(row, label)) / static_cast<double>(grad.rows);
    for (std::int64_t c = 0; c < grad.cols; ++c) {
      grad.at(row, c) = (std::exp(grad.at(row, c)) / sum - (c == label ? 1 : 0)) / static_cast<double>(grad.rows);
    }
  }
  const auto scaled = [](Matrix m) {
    for (double& value : m.values) value *= kScale;
    return m;
  };
  const Matrix grad_low2 = scaled(times(grad, transpose(second.up)));
  result.gradients[3] = scaled(times(transpose(grad), transpose(low2)));
  result.gradients[2] = times(transpose(grad_low2), transpose(hidden));
  Matrix grad_before = plus(times(grad, transpose(second.frozen)), times(grad_low2, transpose(second.down)), 1);
  for (std::size_t i = 0; i < slope.values.size(); ++i) grad_before.values[i] *= slope.values[i];
  const Matrix grad_low1 = scaled(times(grad_before, transpose(first.up)));
  result.gradients[1] = scaled(times(transpose(grad_before), transpose(low1)));
  result.gradients[0] = times(transpose(grad_low1), transpose(x));
  return result;
}

// A context's device with a task on it.
struct Place {
  explicit Place(const ingot::ContextOptions& options, const ModelShape& shape = kShape)
      : context(options),
        stream(context.backend()),
        ops(context, stream),
        task(context.backend(), stream, ops, shape, 1) {}

  ingot::Backend& backend() { return context.backend(); }

  ingot::Context context;
  ingot::Stream stream;
  training::OpRunner ops;
  Task task;
};

// |gradient - reference| / |reference| of each adapter's matrix is at most `bound`, and the loss is right.
inline void check_gradients(Place& place, const std::optional<ingot::LinearConfig>& config, double bound) {
  ingot::Stream& stream = place.stream;
  Model model(place.backend(), stream, place.ops, place.task, config);
  model.init(11, 0.3);  // where `up` is zeros, `down` has no gradient
  const auto adapters = model.parameters();
  const ingot::OwnedTensor loss(place.backend(), ingot::Dtype::f32, 1, 1);
  model.forward_backward(static_cast<float*>(loss.view().data), nullptr);

  const auto frozen = [&](const ingot::Tensor& weight) {
    return config ? decoded(in_float8(place.backend(), stream, weight, *config)) : read(weight, stream);
  };
  const auto weights = [&](const ingot::Tensor& weight, std::size_t first) {
    return Weights{frozen(weight), read(adapters[first]->working, stream), read(adapters[first + 1]->working, stream)};
  };
  std::vector<std::uint32_t> labels(index(place.task.shape().tokens));
  place.backend().device_api().copy_to_host(labels.data(), place.task.labels(), labels.size() * sizeof(std::uint32_t),
                                            stream);
  const Expected expected = reference(read(place.task.inputs(), stream), labels, weights(place.task.first_weight(), 0),
                                      weights(place.task.second_weight(), 2));
  BOOST_TEST_CHECK(read(loss, stream).values[0] == expected.loss, boost::test_tools::tolerance(0.02));
  const std::array names{"first down", "first up", "second down", "second up"};
  for (std::size_t p = 0; p < adapters.size(); ++p) {
    const Matrix found = read(adapters[p]->grad, stream);
    double error = 0;
    double size = 0;
    for (std::size_t i = 0; i < found.values.size(); ++i) {
      const double value = expected.gradients[p].values[i];
      error += (found.values[i] - value) * (found.values[i] - value);
      size += value * value;
    }
    BOOST_REQUIRE(size > 0);
    BOOST_TEST(std::sqrt(error / size) <= bound, names[p] << ": relative error " << std::sqrt(error / size));
    BOOST_TEST_MESSAGE(names[p] << ": " << std::sqrt(error / size));
  }
}

// Trains with frozen weights in bf16 and in FP8; the losses fall alike.
inline void check_training(Place& place, const ingot::LinearConfig& config, const TrainOptions& options) {
  const auto losses = [&](const std::optional<ingot::LinearConfig>& frozen) {
    Model model(place.backend(), place.stream, place.ops, place.task, frozen);
    return train(place.backend(), place.stream, place.ops, model, options);
  };
  const std::vector<float> bf16 = losses(std::nullopt);
  const std::vector<float> fp8 = losses(config);
  BOOST_TEST_MESSAGE("bf16 " << bf16.front() << " -> " << bf16.back() << ", fp8 " << fp8.front() << " -> "
                             << fp8.back());
  BOOST_TEST(bf16.back() < 0.8F * bf16.front());
  BOOST_TEST(fp8.back() < 0.8F * fp8.front());
  BOOST_TEST_CHECK(fp8.back() == bf16.back(), boost::test_tools::tolerance(0.01F));
}

}  // namespace lora::test
