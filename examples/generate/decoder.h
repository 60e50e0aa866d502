// A Llama-like decoder, one token at a time:
//
//   x = embedding[token]
//   for each layer:
//     x = x + attention(rmsnorm(x))           rotary embedding, grouped queries, a cache of keys and values
//     x = x + (silu(gate) * up) @ down^T      gate and up are linear in rmsnorm(x)
//   logits = rmsnorm(x) @ head^T              in f32
//
// A layer is eight launches: AddNorm, qkv, DecodeAttention, output, AddNorm, gate and up, GatedSilu, down.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ingot/nn/weights/weight_only.h"
#include "machine.h"
#include "model_shape.h"
#include "op_runner.h"
#include "weights.h"

namespace generate {

// y[M, N] = x[M, K] @ weight^T, with y in bf16 or f32 and the weight in bf16 or in fewer bits.
class Linear {
 public:
  // Quantises the weight as `options` say; without them it stays in bf16.
  Linear(Machine& machine, ingot::OwnedTensor weight, const std::optional<ingot::WeightOnlyOptions>& options);

  void forward(const ingot::Tensor& x, const ingot::Tensor& y, ingot::Stream& stream) const;
  // How much of the weight one forward() reads.
  std::int64_t weight_bytes() const;

 private:
  ingot::Backend* backend_;
  ingot::OwnedTensor weight_;                         // bf16
  std::optional<ingot::WeightOnlyLinear> quantised_;  // instead of weight_
};

// The weights that all models of one checkpoint share, whatever format their linear layers have.
struct SharedWeights {
  SharedWeights(WeightSource& source, const ModelShape& shape);

  ingot::OwnedTensor embedding, final_norm;
  std::vector<ingot::OwnedTensor> input_norms, mlp_norms;
};

struct DecoderOptions {
  std::optional<ingot::WeightOnlyOptions> weights{};  // of the linear layers; none: bf16
  bool bf16_head = false;                             // the last layer stays in bf16
  std::int64_t batch = 1;                             // sequences
  std::int64_t capacity = 0;                          // the longest sequence, in tokens
};

// Throws Error{invalid_argument} about `subject` if a token is not in the vocabulary.
void check_tokens(const std::string& subject, const std::vector<std::int32_t>& tokens, std::int64_t vocabulary);

class Decoder {
 public:
  // `shared` outlives it.
  Decoder(Machine& machine, OpRunner& ops, const ModelShape& shape, const SharedWeights& shared, WeightSource& source,
          const DecoderOptions& options);

  // Sets the sequences' tokens, all of one length. The next enqueue() decodes the first of them.
  void start(const std::vector<std::vector<std::int32_t>>& tokens);
  // Enqueues one step of every sequence: it decodes the next of the tokens given, or else the token chosen last.
  void enqueue();

  // f32 [batch, vocabulary]: the last step's.
  const ingot::Tensor& logits() const { return logits_; }
  // The first `count` tokens of each sequence.
  std::vector<std::vector<std::int32_t>> tokens(std::int64_t count);
  // Bytes of the linear layers' weights, which each step reads once, whatever the batch.
  std::int64_t weight_bytes() const;
  std::int64_t capacity() const { return sequences_.capacity; }

 private:
  struct Layer {
    Linear qkv, output, gate_up, down;
    ingot::OwnedTensor keys, values;  // bf16 [batch * kv_heads * capacity, head_dims]
  };

  void add_norm(const ingot::OwnedTensor* delta, const ingot::OwnedTensor& gamma);
  void attend(const Layer& layer);
  template <ingot::i64 kQueries>
  void attend_with(const Layer& layer);

  Machine* machine_;
  OpRunner* ops_;
  ModelShape shape_;
  const SharedWeights* shared_;
  std::vector<Layer> layers_;
  Linear head_;
  std::int64_t splits_;

  ingot::Buffer state_, tokens_, chosen_, partials_, counters_, largest_, where_;
  ingot::OwnedTensor cosines_, sines_;  // f32 [capacity, head_dims / 2]
  Sequences sequences_{};
  // In bf16, one row per sequence.
  ingot::OwnedTensor x_, normed_, delta_, qkv_, attended_, gate_up_, activated_;
  ingot::OwnedTensor logits_;  // f32
};

}  // namespace generate
