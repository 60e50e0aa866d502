// A linear layer whose weight is frozen, with a trained adapter of low rank next to it (Hu et al. 2021):
//
//   output = input @ weight^T + scale * (input @ down^T) @ up^T
//
// The weight is given in bf16, or as FP8 codes and scale_inv, as a checkpoint has them: there is no copy in high
// precision then, forward and grad_input come from the codes, and nothing is kept for a gradient of the weight. The
// adapter's GEMMs are in bf16. All of it are functions over plans (docs/stateless_layers.md); this class owns their
// memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <variant>

#include "ingot/nn/linear/linear_functions.h"
#include "ingot/nn/weights/float8_checkpoint.h"
#include "ingot/runtime/context/backend.h"
#include "ingot/runtime/core/buffer.h"
#include "ingot/runtime/core/stream.h"
#include "training/op_runner.h"
#include "training/optimizer.h"

namespace lora {

struct LoraOptions {
  std::string name = "lora";
  std::int64_t in_features = 0;
  std::int64_t out_features = 0;
  std::int64_t rank = 16;
  double scale = 2;  // alpha / rank
  std::int64_t tokens = 0;
  // How FP8 codes are multiplied: a recipe that takes the weight's scale_inv in both directions (docs/checkpoints.md).
  ingot::LinearConfig config{};
};

// A frozen weight: bf16 [N, K], which must outlive the layer, or codes and scale_inv, which are copied to the device.
using FrozenWeight = std::variant<ingot::Tensor, ingot::Float8WeightState>;

class LoraLinear {
 public:
  LoraLinear(ingot::Backend& backend, ingot::Stream& stream, const LoraOptions& options, const FrozenWeight& weight);

  // `up` starts as zeros, so that the layer starts as the frozen one; or from N(0, up_deviation^2).
  void init(training::OpRunner& ops, std::uint64_t seed, double up_deviation = 0);

  // bf16 [tokens, in_features] and [tokens, out_features].
  void forward(const ingot::Tensor& input, const ingot::Tensor& output);
  // Writes the gradients of down and up, and of the input if it is given. `input` is forward's.
  void backward(const ingot::Tensor& input, const ingot::Tensor& grad_output, const ingot::Tensor& grad_input = {});

  training::Parameter down;  // [rank, in_features]
  training::Parameter up;    // [out_features, rank]
  // Device memory that the frozen weight takes.
  std::size_t weight_bytes() const { return weight_bytes_; }

 private:
  // A plan with what its forward leaves for its backward.
  struct Part {
    Part(ingot::Backend& backend, const ingot::LinearPlanOptions& options, std::int64_t tokens);

    ingot::LinearPlan plan;
    ingot::Buffer saved_memory;
    ingot::LinearSaved saved;
  };

  ingot::MemoryRegion scratch() const { return {scratch_.data(), scratch_.bytes()}; }
  // Through the adapter alone: gradients of `down`, and of its input.
  void backward_down(const ingot::Tensor& input, const ingot::Tensor& grad_input);

  ingot::Backend* backend_;
  ingot::Stream* stream_;
  Part base_, down_part_, up_part_;
  ingot::Tensor weight_{};  // in bf16, or none
  std::size_t weight_bytes_ = 0;
  ingot::Buffer codes_memory_, constants_memory_, scratch_;
  ingot::Float8View codes_{};
  ingot::LinearScales scales_{};
  ingot::OwnedTensor base_output_;             // bf16 [tokens, out_features]
  ingot::OwnedTensor lowered_, grad_lowered_;  // bf16 [tokens, rank]: input @ down^T
  ingot::OwnedTensor grad_through_adapter_;    // bf16 [tokens, in_features]
};

}  // namespace lora
