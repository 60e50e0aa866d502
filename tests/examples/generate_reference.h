// The decoder of examples/generate in float64, written from its description: every position is computed anew from all
// tokens before it, without a cache.
#pragma once

#include <boost/test/unit_test.hpp>

#include <cmath>
#include <cstdint>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "decoder.h"
#include "generation.h"
#include "machine.h"
#include "model_shape.h"
#include "weights.h"

namespace generate::test {

using Vector = std::vector<double>;

inline std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

class Reference {
 public:
  Reference(const ModelShape& shape, std::map<std::string, Vector> weights)
      : shape_(shape), weights_(std::move(weights)) {}

  // The logits after each of the tokens.
  std::vector<Vector> logits(const std::vector<std::int32_t>& tokens) const {
    std::vector<Vector> x;
    for (const std::int32_t token : tokens) {
      const Vector& table = weights_.at("model.embed_tokens.weight");
      x.emplace_back(table.begin() + token * shape_.hidden, table.begin() + (token + 1) * shape_.hidden);
    }
    for (std::int64_t layer = 0; layer < shape_.layers; ++layer) {
      const std::string prefix = "model.layers." + std::to_string(layer) + ".";
      attend(x, prefix);
      for (Vector& each : x) {
        const Vector normed = norm(each, prefix + "post_attention_layernorm.weight");
        Vector gate = linear(normed, prefix + "mlp.gate_proj.weight");
        const Vector up = linear(normed, prefix + "mlp.up_proj.weight");
        for (std::size_t i = 0; i < gate.size(); ++i) gate[i] *= up[i] / (1 + std::exp(-gate[i]));
        add(each, linear(gate, prefix + "mlp.down_proj.weight"));
      }
    }
    std::vector<Vector> result;
    result.reserve(x.size());
    for (const Vector& each : x) result.push_back(linear(norm(each, "model.norm.weight"), "lm_head.weight"));
    return result;
  }

 private:
  static void add(Vector& x, const Vector& y) {
    for (std::size_t i = 0; i < x.size(); ++i) x[i] += y[i];
  }

  Vector linear(const Vector& x, const std::string& name) const {
    const Vector& weight = weights_.at(name);
    Vector y(weight.size() / x.size());
    for (std::size_t n = 0; n < y.size(); ++n) {
      y[n] = std::inner_product(x.begin(), x.end(), weight.begin() + static_cast<std::ptrdiff_t>(n * x.size()), 0.0);
    }
    return y;
  }

  Vector norm(Vector x, const std::string& name) const {
    const Vector& gamma = weights_.at(name);
    const double mean = std::inner_product(x.begin(), x.end(), x.begin(), 0.0) / static_cast<double>(x.size());
    for (std::size_t i = 0; i < x.size(); ++i) x[i] *= gamma[i] / std::sqrt(mean + shape_.norm_eps);
    return x;
  }

  // As Meta's Llama 3.1 has it, in terms of wave lengths.
  double frequency(double pair) const {
    const double frequency = std::pow(shape_.rope_theta, -2.0 * pair / static_cast<double>(shape_.head_dims));
    if (!shape_.rope_scaling) return frequency;
    const RopeScaling& scaling = *shape_.rope_scaling;
    const double length = 2 * 3.14159265358979323846 / frequency;
    const double low = scaling.original_positions / scaling.low_frequency_factor;
    const double high = scaling.original_positions / scaling.high_frequency_factor;
    if (length < high) return frequency;
    if (length > low) return frequency / scaling.factor;
    const double smooth = (scaling.original_positions / length - scaling.low_frequency_factor) /
                          (scaling.high_frequency_factor - scaling.low_frequency_factor);
    return (1 - smooth) * frequency / scaling.factor + smooth * frequency;
  }

  // Each head as complex numbers: element i is the real part and element i + dims / 2 the imaginary part of one that is
  // multiplied by e^(i * position * theta^(-2 i / dims)).
  Vector turned(Vector x, std::size_t position) const {
    const std::size_t half = index(shape_.head_dims) / 2;
    for (std::size_t head = 0; head < x.size(); head += 2 * half) {
      for (std::size_t i = 0; i < half; ++i) {
        const double angle = static_cast<double>(position) * frequency(static_cast<double>(i));
        const double real = x[head + i];
        const double imaginary = x[head + half + i];
        x[head + i] = real * std::cos(angle) - imaginary * std::sin(angle);
        x[head + half + i] = real * std::sin(angle) + imaginary * std::cos(angle);
      }
    }
    return x;
  }

  void attend(std::vector<Vector>& x, const std::string& prefix) const {
    const std::size_t dims = index(shape_.head_dims);
    std::vector<Vector> queries;
    std::vector<Vector> keys;
    std::vector<Vector> values;
    for (std::size_t p = 0; p < x.size(); ++p) {
      const Vector normed = norm(x[p], prefix + "input_layernorm.weight");
      queries.push_back(turned(linear(normed, prefix + "self_attn.q_proj.weight"), p));
      keys.push_back(turned(linear(normed, prefix + "self_attn.k_proj.weight"), p));
      values.push_back(linear(normed, prefix + "self_attn.v_proj.weight"));
    }
    for (std::size_t p = 0; p < x.size(); ++p) {
      Vector attended(index(shape_.query_rows()));
      for (std::int64_t head = 0; head < shape_.heads; ++head) {
        const std::size_t q = index(head) * dims;
        const std::size_t k = index(head * shape_.kv_heads / shape_.heads) * dims;
        Vector weights(p + 1);
        double total = 0;
        for (std::size_t other = 0; other <= p; ++other) {
          double score = 0;
          for (std::size_t d = 0; d < dims; ++d) score += queries[p][q + d] * keys[other][k + d];
          weights[other] = std::exp(score / std::sqrt(static_cast<double>(dims)));
          total += weights[other];
        }
        for (std::size_t other = 0; other <= p; ++other) {
          for (std::size_t d = 0; d < dims; ++d) attended[q + d] += weights[other] / total * values[other][k + d];
        }
      }
      add(x[p], linear(attended, prefix + "self_attn.o_proj.weight"));
    }
  }

  ModelShape shape_;
  std::map<std::string, Vector> weights_;
};

// A decoder with random weights on whatever device the context has.
class DecoderCase {
 public:
  DecoderCase(ingot::Context& context, const ModelShape& shape, const DecoderOptions& options)
      : machine_(context),
        ops_(context, machine_.stream(), machine_.overlaps_kernels()),
        shape_(shape),
        source_(machine_, ops_, 5),
        shared_(source_, shape),
        decoder_(machine_, ops_, shape, shared_, source_, options),
        generator_(machine_, decoder_) {}

  Machine& machine() { return machine_; }
  WeightSource& source() { return source_; }
  Decoder& decoder() { return decoder_; }
  Generator& generator() { return generator_; }

  Reference reference() {
    std::map<std::string, Vector> weights;
    for (const NamedTensor& tensor : all_tensors(shape_)) {
      const ingot::OwnedTensor values = source_.load(tensor);
      std::vector<bf16> data(index(values.view().rows * values.view().cols));
      machine_.device_api().copy_to_host(data.data(), values.view().data, data.size() * 2, machine_.stream());
      machine_.device_api().synchronize(machine_.stream());
      for (const bf16 value : data) weights[tensor.name].push_back(ingot::to_float(value));
    }
    return {shape_, std::move(weights)};
  }

  // Of the last step: [sequence][token].
  std::vector<std::vector<float>> logits() {
    const ingot::Tensor& logits = decoder_.logits();
    std::vector<std::vector<float>> result(index(logits.rows), std::vector<float>(index(logits.cols)));
    for (std::size_t i = 0; i < result.size(); ++i) {
      machine_.device_api().copy_to_host(result[i].data(),
                                         static_cast<const float*>(logits.data) + i * result[i].size(),
                                         result[i].size() * sizeof(float), machine_.stream());
    }
    machine_.device_api().synchronize(machine_.stream());
    return result;
  }

 private:
  Machine machine_;
  OpRunner ops_;
  ModelShape shape_;
  WeightSource source_;
  SharedWeights shared_;
  Decoder decoder_;
  Generator generator_;
};

// |logits - reference| / |reference|
inline double error_of_logits(const std::vector<float>& logits, const Vector& reference) {
  BOOST_REQUIRE(logits.size() == reference.size());
  double error = 0;
  double size = 0;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    error += (logits[i] - reference[i]) * (logits[i] - reference[i]);
    size += reference[i] * reference[i];
  }
  return std::sqrt(error / size);
}

// Generates after a prompt of each sequence; at every token the logits are within `bound` of the reference's for the
// same tokens, and what follows is their largest. Looks at every `stride`th token.
inline void check_generation(ingot::Context& context, const ModelShape& shape, const DecoderOptions& options,
                             std::int64_t prompt, double bound, std::int64_t stride = 1) {
  DecoderCase decoder_case(context, shape, options);
  Tokens tokens;
  std::uint64_t seed = 3;
  for (std::int64_t i = 0; i < options.batch; ++i) {
    auto& sequence = tokens.emplace_back();
    for (std::int64_t t = 0; t < prompt; ++t) {
      sequence.push_back(static_cast<std::int32_t>(examples::hash_of(++seed) % index(shape.vocabulary)));
    }
  }
  decoder_case.generator().start(tokens);
  std::vector<std::vector<std::vector<float>>> logits;  // [position][sequence][token]
  for (std::int64_t position = 0; position < options.capacity; ++position) {
    decoder_case.generator().advance(1);
    logits.push_back(decoder_case.logits());
  }
  const Tokens generated = decoder_case.decoder().tokens(options.capacity);
  const Reference reference = decoder_case.reference();
  double worst = 0;
  for (std::size_t s = 0; s < tokens.size(); ++s) {
    BOOST_TEST(std::equal(tokens[s].begin(), tokens[s].end(), generated[s].begin()));
    const std::vector<Vector> expected = reference.logits(generated[s]);
    for (std::int64_t position = 0; position < options.capacity; ++position) {
      const std::vector<float>& mine = logits[index(position)][s];
      if (position % stride == 0) worst = std::max(worst, error_of_logits(mine, expected[index(position)]));
      if (position + 1 < prompt || position + 1 == options.capacity) continue;
      const auto largest = std::max_element(mine.begin(), mine.end()) - mine.begin();
      BOOST_TEST(generated[s][index(position) + 1] == largest);
    }
  }
  BOOST_TEST(worst <= bound);
  BOOST_TEST_MESSAGE("largest relative error of logits: " << worst);
}

inline ModelShape small_shape(std::int64_t heads, std::int64_t kv_heads, std::int64_t head_dims) {
  return {.layers = 2,
          .hidden = 64,
          .intermediate = 136,
          .heads = heads,
          .kv_heads = kv_heads,
          .head_dims = head_dims,
          .vocabulary = 203};
}

}  // namespace generate::test
