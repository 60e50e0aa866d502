// The model: embeddings of the last `context` bytes side by side -> residual blocks -> distribution of the next byte.
//
//   x = embed(window)                                                [batch, width]
//   x = x + linear2(silu(linear1(rmsnorm(x))))                       for each block
//   logits = head(rmsnorm(x))                                        [batch, 256]
//
// The blocks' linear layers compute as `config` says, the head in bf16. Weights are bf16 copies of f32 values that
// AdamW updates.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ingot/nn/delayed_scaling.h"
#include "ingot/nn/float8_linear.h"
#include "op_runner.h"
#include "options.h"

namespace train_lm {

// A weight, a bias or the embedding table.
struct Parameter {
  Parameter(ingot::Backend& backend, std::int64_t rows, std::int64_t cols);

  ingot::OwnedTensor values, first_moment, second_moment;  // f32
  ingot::OwnedTensor working, grad;                        // bf16
  std::int64_t count;
};

struct OptimizerStep {
  std::int64_t number;  // starts at 1
  double learning_rate;
  double weight_decay;
};

class Model {
 public:
  Model(ingot::Context& context, ingot::Stream& stream, OpRunner& ops, const ModelShape& shape, std::int64_t batch,
        const ingot::LinearConfig& config, std::uint64_t seed);

  // Enqueues the forward pass, which writes the batch's mean loss to loss[0] (f32, on the device).
  void forward(const Batch& batch, float* loss);
  // Enqueues forward(), then all gradients.
  void forward_backward(const Batch& batch, float* loss);
  void update(const OptimizerStep& step);

  std::vector<Parameter*> parameters();
  // Makes the working copies from the values, after a checkpoint was read.
  void values_changed();
  // The state of the layers' delayed scales, if there are any: part of a checkpoint.
  ingot::DelayedScaling& delayed_scaling() { return delayed_; }

 private:
  struct Linear {
    Linear(ingot::Backend& backend, ingot::LinearShape shape, const ingot::LinearConfig& config,
           ingot::LinearOptions options);
    void forward(const ingot::Tensor& input, const ingot::Tensor& output, ingot::Stream& stream);
    void backward(const ingot::Tensor& grad_output, const ingot::Tensor& grad_input, ingot::Stream& stream);

    ingot::Float8Linear layer;
    Parameter weight, bias;
  };
  struct Normed {
    ingot::OwnedTensor values;       // bf16 [batch, width]
    ingot::OwnedTensor inverse_rms;  // f32 [batch]
  };
  struct Block {
    Block(ingot::Backend& backend, const ModelShape& shape, std::int64_t batch, const ingot::LinearConfig& config,
          const ingot::LinearOptions& options);

    Linear first, second;
    Normed normed;
    ingot::OwnedTensor hidden, activated;  // bf16 [batch, hidden]
  };

  void init(Parameter& parameter, double deviation, std::uint64_t seed);
  void run_forward(const Batch& batch, float* loss, bool with_grad);
  void add_norm(const ingot::OwnedTensor* delta, Normed& out);
  void norm_backward(const Normed& normed, bool accumulate);

  ingot::Stream* stream_;
  OpRunner* ops_;
  ModelShape shape_;
  std::int64_t batch_;
  ingot::Float8Workspace workspace_;
  ingot::DelayedScaling delayed_;
  Parameter embedding_;
  std::vector<std::unique_ptr<Block>> blocks_;
  Linear head_;

  ingot::OwnedTensor x_, delta_;  // bf16 [batch, width]
  Normed last_normed_;
  ingot::OwnedTensor logits_, grad_logits_;                   // bf16 [batch, 256]
  ingot::OwnedTensor row_losses_;                             // f32 [batch]
  ingot::OwnedTensor grad_x_, grad_normed_, grad_activated_;  // bf16
  std::int64_t embedding_parts_;
  ingot::OwnedTensor embedding_tables_;  // f32 [parts, 256 * embedding]
};

}  // namespace train_lm
