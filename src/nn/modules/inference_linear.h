// A linear layer for inference from an FP8 checkpoint: the GEMM multiplies the checkpoint's codes with FP8 codes of the
// activations (W8A8), and nothing is kept for a backward.
//
//   const auto checkpoint = SafetensorsCheckpoint::open("Llama-3.1-8B-Instruct-FP8");
//   InferenceLinear linear(backend, load_float8_weight(checkpoint, "model.layers.0.self_attn.q_proj."), stream);
//   linear.forward({.input = x, .output = y}, stream);
//
// It owns the codes, scratch, and a plan in inference mode; what it computes is linear_forward(). On a stream with an
// allocator scratch is the allocator's for the time of a call. For few tokens, whose step only reads the weight,
// WeightOnlyLinear does not round the activations.
//
// forward() allocates only for more tokens than ever before, so a step that has run once can be captured into a graph.
// Calls must come on one stream or be ordered by the caller.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "ingot/api.h"
#include "ingot/nn/linear/linear_functions.h"
#include "ingot/nn/linear/linear_plan.h"
#include "ingot/nn/modules/float8_linear.h"
#include "ingot/nn/weights/float8_checkpoint.h"
#include "ingot/runtime/context/backend.h"
#include "ingot/runtime/core/buffer.h"
#include "ingot/runtime/core/stream.h"

namespace ingot {

struct InferenceLinearOptions {
  std::string name = "linear";
  Dtype dtype = Dtype::bf16;      // of the input: f32, bf16 or f16
  std::optional<Dtype> output{};  // default: the input's
  bool bias = false;
  std::optional<Dtype> bias_dtype{};  // default: what the GEMM takes, bf16 for f32 outputs, otherwise the output's
  Pointwise epilogue{};
  // Dynamic scales of the activations: kTensorwise or kRowwise, or kRowGroups with weights in blocks or groups.
  // Default: the checkpoint's static scale if it has one, otherwise kRowGroups with such weights and kRowwise with
  // others.
  std::optional<ScaleGranularity> activations{};
  Float8Workspace* workspace = nullptr;  // default: the layer's own
};

struct InferenceForward {
  Tensor input;   // [M, K]
  Tensor bias{};  // [N]
  Tensor output;  // [M, N]
  PointwiseTensors epilogue_inputs{};
};

// The config of a forward with this weight: its output GEMM is in FP8 with the weight's format and scales, and the
// other GEMMs are not. `activations` as in InferenceLinearOptions. A static scale is Cast::scale = 1 / input_scale_inv.
// Throws Error{invalid_argument} for an input_scale_inv that is not positive and finite.
INGOT_API LinearConfig inference_config(const Float8WeightState& weight,
                                        std::optional<ScaleGranularity> activations = std::nullopt);

class INGOT_API InferenceLinear {
 public:
  // Copies the weight to the device: not within a capture. Throws Error{invalid_argument} for a state that contradicts
  // itself, and Error{invalid_spec} for activations whose scales do not go with the weight's.
  InferenceLinear(Backend& backend, const Float8WeightState& weight, Stream& stream,
                  const InferenceLinearOptions& options = {});

  // output = epilogue(input @ weight^T + bias). Throws what linear_forward() throws.
  void forward(const InferenceForward& tensors, Stream& stream);

  const LinearPlan& plan() const { return plan_; }
  // The codes and scale_inv, which stay the layer's.
  const Float8View& codes() const { return codes_; }
  // Device memory of codes and scale_inv.
  std::size_t weight_bytes() const { return plan_.weight_memory().bytes; }

 private:
  Backend* backend_;
  LinearPlan plan_;
  Float8Workspace* workspace_;
  Float8Workspace own_workspace_;
  Buffer weight_memory_;
  Buffer constant_memory_;
  Float8View codes_{};
  LinearScales scales_{};
};

}  // namespace ingot
