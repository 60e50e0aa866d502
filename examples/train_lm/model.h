// The model: embeddings of the last `context` bytes side by side -> residual blocks -> distribution of the next byte.
//
//   x = embed(window)                                                [batch, width]
//   x = x + linear2(silu(linear1(rmsnorm(x))))                       for each block
//   logits = head(rmsnorm(x))                                        [batch, 256]
//
// Each block is an RMSNormLinear, whose epilogue is silu, and a Float8Linear, whose epilogue adds x. They compute as
// `config` says, the head in bf16. Weights are bf16 copies of f32 values that AdamW updates, or the values themselves
// (WeightCodes); their gradients are f32 and are accumulated over micro-batches within the GEMMs.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "data_parallel.h"
#include "ingot/nn/modules/delayed_scaling.h"
#include "ingot/nn/modules/float8_linear.h"
#include "ingot/nn/modules/norm_linear.h"
#include "ingot/nn/modules/weight_casts.h"
#include "op_runner.h"
#include "options.h"
#include "training/loss.h"
#include "training/optimizer.h"

namespace train_lm {

using training::Parameter;

// Where the loss of a batch goes (training::LossTensors).
struct LossPlace {
  float* sums = nullptr;  // on the device
  const training::StepValues* now = nullptr;
  bool accumulate = false;  // a further micro-batch: loss and gradients are added
};

class Model {
 public:
  // batch: rows of a micro-batch. Of a config in high precision, every weight is in bf16. `ranks` has the values of
  // the weights where it is given, and outlives the model.
  Model(ingot::Backend& backend, ingot::Stream& stream, OpRunners& ops, const ModelShape& shape, std::int64_t batch,
        const ingot::LinearConfig& config, std::uint64_t seed, WeightCodes codes = WeightCodes::together,
        DataParallel* ranks = nullptr);

  // Enqueues the forward pass, which writes the batch's mean loss.
  void forward(const Batch& batch, const LossPlace& loss);
  // Enqueues forward(), then all gradients.
  void forward_backward(const Batch& batch, const LossPlace& loss);
  // After the optimizer: delayed scales take the step's maxima, and the weights have new values, which are cast.
  void step_done();

  std::vector<Parameter*> parameters();
  // Tells layers that cast their weights themselves that these have new values, which a replayed graph cannot.
  void weights_changed();
  // Makes the working copies from the values, after a checkpoint was read.
  void values_changed();
  // The state of the layers' delayed scales, if there are any: part of a checkpoint.
  ingot::DelayedScaling& delayed_scaling() { return delayed_; }

 private:
  struct Block {
    // Weights of f32 (options.weight_dtype) have no working copy.
    Block(ingot::Backend& backend, const ModelShape& shape, std::int64_t batch, const ingot::LinearConfig& config,
          const ingot::LinearOptions& options, const DataParallel* ranks);

    ingot::RMSNormLinear first;
    ingot::Float8Linear second;
    Parameter first_weight, second_weight;
    ingot::OwnedTensor hidden;  // bf16 [batch, hidden]
    ingot::OwnedTensor x;       // bf16 [batch, width]: the block's output
  };

  void init(std::uint64_t seed);
  void run_forward(const Batch& batch, const LossPlace& loss, bool with_grad);
  void run_backward(const Batch& batch, bool accumulate);
  void embed_backward(const Batch& batch, bool accumulate);

  ingot::Stream* stream_;
  OpRunners* ops_;
  ModelShape shape_;
  std::int64_t batch_;
  WeightCodes codes_;
  DataParallel* ranks_;
  ingot::WeightCasts casts_;
  ingot::Float8Workspace workspace_;
  ingot::DelayedScaling delayed_;
  Parameter embedding_;
  std::vector<std::unique_ptr<Block>> blocks_;
  ingot::RMSNormLinear head_;
  Parameter head_weight_;
  training::CrossEntropyLoss loss_;

  ingot::OwnedTensor x_;                     // bf16 [batch, width]: the embeddings
  ingot::OwnedTensor logits_, grad_logits_;  // bf16 [batch, 256]
  ingot::Buffer targets_;                    // u32 [batch]
  ingot::OwnedTensor grad_x_, grad_branch_;  // bf16 [batch, width]
  ingot::OwnedTensor grad_hidden_;           // bf16 [batch, hidden]
  std::int64_t embedding_parts_;
  ingot::OwnedTensor embedding_tables_;  // f32 [parts, 256 * embedding]
};

}  // namespace train_lm
