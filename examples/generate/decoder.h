// A decoder of Llama's kind, one token at a time:
//
//   x = embedding[token]
//   x = x + attention(rmsnorm(x))            for each layer: rotary embedding, grouped queries, a cache of keys and
//   values x = x + (silu(gate) * up) @ down^T       of rmsnorm(x) logits = rmsnorm(x) @ head^T             f32
//
// In a layer that is eight launches: AddNorm, qkv, DecodeAttention, output, AddNorm, gate and up, GatedSilu, down.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ingot/nn/weight_only.h"
#include "machine.h"
#include "model_shape.h"
#include "op_runner.h"
#include "weights.h"

namespace generate {

// y[M, N] = x[M, K] @ weight^T, y in bf16 or f32, with the weight in bf16 or in fewer bits.
class Linear {
 public:
  // options: what the weight is quantised to; none: it stays as it is.
  Linear(Machine& machine, ingot::OwnedTensor weight, const std::optional<ingot::WeightOnlyOptions>& options);

  void forward(const ingot::Tensor& x, const ingot::Tensor& y, ingot::Stream& stream) const;
  // What a forward() reads of weights.
  std::int64_t weight_bytes() const;

 private:
  ingot::OwnedTensor weight_;                         // bf16
  std::optional<ingot::WeightOnlyLinear> quantised_;  // in its place
};

// What models of one checkpoint have in common whatever their linear layers are in.
struct SharedWeights {
  SharedWeights(WeightSource& source, const ModelShape& shape);

  ingot::OwnedTensor embedding, final_norm;
  std::vector<ingot::OwnedTensor> input_norms, mlp_norms;
};

struct DecoderOptions {
  std::optional<ingot::WeightOnlyOptions> weights{};  // of the linear layers; none: bf16
  bool bf16_head = false;                             // the last layer stays in bf16
  std::int64_t batch = 1;                             // sequences
  std::int64_t capacity = 0;                          // positions, of all tokens of a sequence
};

// Throws Error{invalid_argument} of `subject` where a token is none of the vocabulary's.
void check_tokens(const std::string& subject, const std::vector<std::int32_t>& tokens, std::int64_t vocabulary);

class Decoder {
 public:
  // `shared` outlives it.
  Decoder(Machine& machine, OpRunner& ops, const ModelShape& shape, const SharedWeights& shared, WeightSource& source,
          const DecoderOptions& options);

  // The sequences' tokens, all of one length, from which the next step() starts: at their first.
  void start(const std::vector<std::vector<std::int32_t>>& tokens);
  // Enqueues one token of each sequence: the next of those given, or the one that was chosen last.
  void enqueue();

  // f32 [batch, vocabulary], of the last step.
  const ingot::Tensor& logits() const { return logits_; }
  // What each sequence has so far: `count` tokens.
  std::vector<std::vector<std::int32_t>> tokens(std::int64_t count);
  // Bytes of the linear layers' weights: what one step reads of them, whatever the batch.
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
  // bf16, with a row for each sequence.
  ingot::OwnedTensor x_, normed_, delta_, qkv_, attended_, gate_up_, activated_;
  ingot::OwnedTensor logits_;  // f32
};

}  // namespace generate
