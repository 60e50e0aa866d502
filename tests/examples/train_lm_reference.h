// The model of examples/train_lm in float64, forward only, written from its description. Gradients come from central
// differences of its loss, so they know nothing of the backward pass that they check.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "ingot/nn/recipe/recipes.h"
#include "ingot/runtime/context/context.h"
#include "model.h"
#include "op_runner.h"

namespace train_lm::test {

using Vector = std::vector<double>;

inline constexpr ModelShape kShape{.context = 4, .embedding = 8, .hidden = 48, .blocks = 2};
inline constexpr std::int64_t kBatch = 24;

inline std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

// weight[out, in] @ x[in]
inline Vector linear(const Vector& x, const Vector& weight) {
  Vector y(weight.size() / x.size());
  for (std::size_t n = 0; n < y.size(); ++n) {
    for (std::size_t k = 0; k < x.size(); ++k) y[n] += weight[n * x.size() + k] * x[k];
  }
  return y;
}

inline Vector rms_norm(Vector x) {
  double squares = 0;
  for (const double value : x) squares += value * value;
  const double rms = std::sqrt(squares / static_cast<double>(x.size()) + 1e-5);
  for (double& value : x) value /= rms;
  return x;
}

struct Window {
  std::vector<std::uint8_t> bytes;
  std::uint8_t target;
};

// `parameters` in the order of Model::parameters().
inline double reference_loss(const std::vector<Vector>& parameters, const std::vector<Window>& windows) {
  double total = 0;
  for (const Window& window : windows) {
    Vector x;
    for (const std::uint8_t byte : window.bytes) {
      for (std::int64_t d = 0; d < kShape.embedding; ++d)
        x.push_back(parameters[0][index(byte * kShape.embedding + d)]);
    }
    for (std::int64_t block = 0; block < kShape.blocks; ++block) {
      const std::size_t first = 1 + 2 * index(block);
      Vector hidden = linear(rms_norm(x), parameters[first]);
      for (double& value : hidden) value /= 1 + std::exp(-value);
      const Vector delta = linear(hidden, parameters[first + 1]);
      for (std::size_t i = 0; i < x.size(); ++i) x[i] += delta[i];
    }
    const Vector logits = linear(rms_norm(x), parameters.back());
    double exponentials = 0;
    for (const double logit : logits) exponentials += std::exp(logit);
    total += std::log(exponentials) - logits[window.target];
  }
  return total / static_cast<double>(windows.size());
}

// One model with a batch of random letters, on whatever device the context has. With micro-batches, the gradients of
// the same batch are accumulated.
class ModelCase {
 public:
  ModelCase(ingot::Context& context, const ingot::LinearConfig& config, std::int64_t micro_batches = 1)
      : micro_batches_(micro_batches),
        stream_(context.backend()),
        ops_(context, stream_),
        model_(context.backend(), stream_, ops_, kShape, kBatch / micro_batches, config, 7),
        text_(context.backend(), kTextBytes),
        loss_(context.backend(), ingot::Dtype::f32, 1, 1),
        now_(context.backend(), sizeof(training::StepValues)) {
    std::mt19937_64 random(3);
    for (std::uint8_t& byte : host_text_) byte = static_cast<std::uint8_t>('a' + random() % 26);
    stream_.device_api().copy_from_host(text_.data(), host_text_.data(), host_text_.size(), stream_);
    set_step({.step = 0, .seed = kSeed, .learning_rate = 0, .correction1 = 1, .correction2 = 1});
  }

  Model& model() { return model_; }
  OpRunners& ops() { return ops_; }
  ingot::Stream& stream() { return stream_; }

  // The values of the coming optimizer steps; the step's number has to stay 0, as there is one loss.
  void set_step(const training::StepValues& values) {
    stream_.device_api().copy_from_host(now_.data(), &values, sizeof(values), stream_);
  }
  const training::StepValues* now() const { return static_cast<const training::StepValues*>(now_.data()); }

  float forward_backward() {
    for (std::int64_t i = 0; i < micro_batches_; ++i) {
      model_.forward_backward(batch(static_cast<const std::uint8_t*>(text_.data()), &now()->seed, i),
                              {.sums = static_cast<float*>(loss_.view().data), .now = now(), .accumulate = i > 0});
    }
    return static_cast<float>(read(loss_)[0]);
  }

  std::vector<Window> windows() const {
    const u64 seed = kSeed;
    const Batch host = batch(host_text_.data(), &seed, 0);
    std::vector<Window> result;
    for (std::int64_t row = 0; row < kBatch; ++row) {
      const std::uint8_t* window = host.window(row);
      BOOST_REQUIRE(window >= host_text_.data());
      BOOST_REQUIRE(window + kShape.context < host_text_.data() + host_text_.size());
      result.push_back({.bytes = {window, window + kShape.context}, .target = host.target(row)});
    }
    return result;
  }

  // f32 or bf16
  Vector read(const ingot::OwnedTensor& tensor) {
    const ingot::Tensor& view = tensor.view();
    const auto count = index(view.rows * view.cols);
    Vector result(count);
    const std::size_t bytes = view.dtype == ingot::Dtype::f32 ? 4 : 2;
    std::vector<std::uint8_t> data(count * bytes);
    stream_.device_api().copy_to_host(data.data(), view.data, data.size(), stream_);
    stream_.device_api().synchronize(stream_);
    for (std::size_t i = 0; i < count; ++i) {
      std::array<std::uint8_t, 4> f32{};  // a bf16 is its upper half
      std::copy_n(data.data() + i * bytes, bytes, f32.begin() + 4 - static_cast<std::ptrdiff_t>(bytes));
      result[i] = std::bit_cast<float>(f32);
    }
    return result;
  }

 private:
  static constexpr std::size_t kTextBytes = 500;

  static constexpr std::uint64_t kSeed = 11;

  Batch batch(const std::uint8_t* text, const u64* seed, std::int64_t micro_batch) const {
    const std::int64_t size = kBatch / micro_batches_;
    return {.text = text,
            .places = static_cast<std::int64_t>(kTextBytes) - kShape.context,
            .context = kShape.context,
            .size = size,
            .first = micro_batch * size,
            .total = kBatch,
            .seed = seed};
  }

  std::int64_t micro_batches_;
  ingot::Stream stream_;
  OpRunners ops_;
  Model model_;
  ingot::Buffer text_;
  ingot::OwnedTensor loss_;
  ingot::Buffer now_;
  std::vector<std::uint8_t> host_text_ = std::vector<std::uint8_t>(kTextBytes);
};

inline std::string name_of(std::size_t parameter) {
  if (parameter == 0) return "embedding";
  if (parameter == 1 + 2 * index(kShape.blocks)) return "head weight";
  return "block " + std::to_string((parameter - 1) / 2) + (parameter % 2 == 1 ? " first weight" : " second weight");
}

// |gradient - reference| / |reference| of each parameter, over up to 300 of its entries, is at most `bound`.
inline void check_gradients(ingot::Context& context, const ingot::LinearConfig& config, double bound) {
  ModelCase model_case(context, config);
  const double loss = model_case.forward_backward();
  const std::vector<Parameter*> all = model_case.model().parameters();
  std::vector<Vector> values;
  for (const Parameter* parameter : all) values.push_back(model_case.read(parameter->working));
  const std::vector<Window> windows = model_case.windows();
  BOOST_TEST_CHECK(loss == reference_loss(values, windows), boost::test_tools::tolerance(0.01));

  for (std::size_t p = 0; p < all.size(); ++p) {
    const Vector gradient = model_case.read(all[p]->grad);
    // The embedding: the rows of 'a' .. 'z'. A stride that shares no factor with the rows' length meets every column.
    const std::size_t begin = p == 0 ? 'a' * index(kShape.embedding) : 0;
    const std::size_t end = p == 0 ? ('z' + 1) * index(kShape.embedding) : gradient.size();
    const std::size_t stride = (end - begin) / 300 / 2 * 2 + 1;
    double error = 0;
    double size = 0;
    for (std::size_t i = begin; i < end; i += stride) {
      constexpr double kStep = 1e-4;
      const double value = values[p][i];
      values[p][i] = value + kStep;
      const double above = reference_loss(values, windows);
      values[p][i] = value - kStep;
      const double below = reference_loss(values, windows);
      values[p][i] = value;
      const double reference = (above - below) / (2 * kStep);
      error += (gradient[i] - reference) * (gradient[i] - reference);
      size += reference * reference;
    }
    BOOST_REQUIRE(size > 0);
    const double relative = std::sqrt(error / size);
    BOOST_TEST(relative <= bound, name_of(p) << ": relative error " << relative << ", at most " << bound);
    BOOST_TEST_MESSAGE(name_of(p) << ": " << relative);
  }

  const Vector embedding = model_case.read(all[0]->grad);
  for (std::size_t i = 0; i < 'a' * index(kShape.embedding); ++i) BOOST_REQUIRE(embedding[i] == 0.0);
}

}  // namespace train_lm::test
