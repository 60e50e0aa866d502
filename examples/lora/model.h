// The model of the example: two layers with frozen weights and adapters, on a task that the frozen weights alone do
// badly. The labels come from a teacher, which has the same frozen weights and other adapters.
//
//   logits = second(silu(first(x)))                  loss = cross-entropy of a class that is drawn as the teacher's
//   logits say
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "ingot/nn/linear/linear_plan.h"
#include "ingot/nn/recipe/config.h"
#include "ingot/runtime/context/backend.h"
#include "ingot/runtime/core/buffer.h"
#include "ingot/runtime/core/stream.h"
#include "lora_linear.h"
#include "training/loss.h"
#include "training/op_runner.h"

namespace lora {

struct ModelShape {
  std::int64_t tokens = 0;
  std::int64_t features = 0;
  std::int64_t hidden = 0;
  std::int64_t classes = 0;
  std::int64_t rank = 16;
};

// The frozen weights in bf16, the inputs and their labels.
class Task {
 public:
  Task(ingot::Backend& backend, ingot::Stream& stream, training::OpRunner& ops, const ModelShape& shape,
       std::uint64_t seed);

  const ModelShape& shape() const { return shape_; }
  const ingot::Tensor& first_weight() const { return first_.view(); }    // [hidden, features]
  const ingot::Tensor& second_weight() const { return second_.view(); }  // [classes, hidden]
  const ingot::Tensor& inputs() const { return inputs_.view(); }         // [tokens, features]
  const std::uint32_t* labels() const { return static_cast<const std::uint32_t*>(labels_.data()); }

 private:
  void make_labels(ingot::Backend& backend, ingot::Stream& stream, training::OpRunner& ops, std::uint64_t seed);

  ModelShape shape_;
  ingot::OwnedTensor first_, second_, inputs_;  // bf16
  ingot::Buffer labels_;                        // u32 [tokens]
};

// Codes and scale_inv of a weight on the device, as load_float8_weight() gives those of a checkpoint.
ingot::Float8WeightState in_float8(ingot::Backend& backend, ingot::Stream& stream, const ingot::Tensor& weight,
                                   const ingot::LinearConfig& config);

class Model {
 public:
  // With a config the frozen weights are FP8 codes, without one bf16.
  Model(ingot::Backend& backend, ingot::Stream& stream, training::OpRunner& ops, const Task& task,
        const std::optional<ingot::LinearConfig>& config);

  void init(std::uint64_t seed, double up_deviation = 0);
  void forward(const ingot::Tensor& logits);
  // The mean loss goes to sums[now->step], on the device.
  void forward_backward(float* sums, const training::StepValues* now);

  std::vector<training::Parameter*> parameters() { return {&first_.down, &first_.up, &second_.down, &second_.up}; }
  std::size_t frozen_bytes() const { return first_.weight_bytes() + second_.weight_bytes(); }

 private:
  ingot::Backend* backend_;
  ingot::Stream* stream_;
  training::OpRunner* ops_;
  const Task* task_;
  LoraLinear first_, second_;
  ingot::Pointwise silu_;
  ingot::EpilogueGradient silu_gradient_;
  training::CrossEntropyLoss loss_;
  ingot::OwnedTensor before_, hidden_, grad_hidden_;  // bf16 [tokens, hidden]
  ingot::OwnedTensor logits_, grad_logits_;           // bf16 [tokens, classes]
};

struct TrainOptions {
  std::int64_t steps = 0;
  double learning_rate = 0;
  std::uint64_t seed = 1;
};

// Trains the adapters and returns the loss of each step.
std::vector<float> train(ingot::Backend& backend, ingot::Stream& stream, training::OpRunner& ops, Model& model,
                         const TrainOptions& options);

}  // namespace lora
