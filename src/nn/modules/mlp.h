// An MLP: two linear layers with an activation between them, and perhaps a norm in front. The norm runs within the cast
// of the first layer's input, the activation within the cast of the second one's.
//
//   LayerNormMlp mlp(backend, {.features = 4096, .hidden = 16384, .bias = true}, rowwise(),
//                    {.activation = "gelu(x)"});
//   mlp.forward({.input = x, .gamma = g, .beta = b, .up_weight = w1, .up_bias = b1, .down_weight = w2, .down_bias = b2,
//                .output = y}, stream);
//   mlp.backward({.grad_output = gy, .grad_input = gx, .grad_gamma = gg, .grad_beta = gb, .grad_up_weight = gw1,
//                 .grad_down_weight = gw2}, stream);
//
// With an activation of x and `up`, such as silu(x) * up, the MLP is gated: up_weight [2 * H, K] has the gate's H rows
// in front of the up projection's (GatedMlp, in gated_mlp.h, is one by other names).
//
// For backward it keeps, besides what its layers keep, the first layer's output: [M, hidden], or gated [M, 2 * hidden],
// of the MLP's dtype. Of the caller's tensors it keeps views, as NormLinear and Float8Linear do.
//
// The class owns memory, scales and the weights' codes; what it computes are the functions of mlp_functions.h.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>

#include "ingot/api.h"
#include "ingot/nn/modules/float8_linear.h"
#include "ingot/nn/modules/mlp_functions.h"

namespace ingot {

// All tensors have one high-precision dtype, except where MlpOptions gives another, and biases as LinearForward::bias
// says. input and output are [M, K]; up_weight is [H, K], or gated [2 * H, K]; down_weight is [K, H]; biases only with
// MlpShape::bias; gamma and beta [K] as the norm has them.
struct MlpForward {
  Tensor input;
  Tensor gamma{};
  Tensor beta{};
  Tensor up_weight;
  Tensor up_bias{};
  Tensor down_weight;
  Tensor down_bias{};
  Tensor output;
  bool keep_for_backward = true;  // as LinearForward::keep_for_backward
};

// Gradients that are not wanted may stay default tensors; those of gamma and beta come with grad_input. Weight
// gradients have the MLP's dtype or f32; with `accumulate` the results are added to them.
struct MlpBackward {
  Tensor grad_output;
  Tensor grad_input{};
  Tensor grad_gamma{};
  Tensor grad_beta{};
  Tensor grad_up_weight{};
  Tensor grad_up_bias{};
  Tensor grad_down_weight{};
  Tensor grad_down_bias{};
  bool accumulate = false;
};

struct MlpOptions {
  std::string name = "mlp";            // its layers are "mlp.up" (or "mlp.gate_up") and "mlp.down"
  std::string activation = "gelu(x)";  // as MlpPlanOptions::activation
  std::optional<NormOptions> norm{};   // in front
  bool fast_math = false;
  std::optional<Dtype> weight_dtype{};  // as LinearOptions', of both layers
  std::optional<Dtype> bias_dtype{};
  std::optional<Dtype> output_dtype{};  // of output and grad_output
  DelayedScaling* delayed = nullptr;
  Float8Workspace* workspace = nullptr;
  LayerObserver* observer = nullptr;
  Stream* side = nullptr;       // as LinearOptions::side
  std::string subject = "Mlp";  // what messages call it
};

class INGOT_API Mlp {
 public:
  // Throws as Float8Linear does, and Error{invalid_spec} for an activation that is no expression of x, or of x and up.
  Mlp(Backend& backend, MlpShape shape, LinearConfig config, const MlpOptions& options = {});

  // As Float8Linear::forward().
  void forward(const MlpForward& tensors, Stream& stream);
  // Makes what backward() needs after a forward() that kept nothing. Takes the same tensors with the same values.
  void recompute(const MlpForward& tensors, Stream& stream);
  void backward(const MlpBackward& tensors, Stream& stream);

  void weights_changed();
  // As Float8Linear::release_saved() and release().
  void release_saved();
  void release();
  const LinearConfig& config() const { return plan_.down.config; }
  // Device memory held for the coming backward().
  std::size_t saved_bytes() const;
  // For a WeightCasts: up and down, as Float8Linear has its own.
  std::array<OwnedLinear, 2> linears_of(Dtype weight);

 protected:
  static MlpOptions with_norm(NormKind kind, MlpOptions options) {
    if (!options.norm) options.norm.emplace();
    options.norm->kind = kind;
    return options;
  }

 private:
  // What was kept and cast by another dtype's plan is then gone.
  void plan_for(Dtype input);
  static MlpForwardTensors forward_tensors(const MlpForward& tensors);
  MlpBackwardTensors backward_tensors(const MlpBackward& tensors) const;
  void run_pass(LinearPass pass, const MlpForward& tensors, Stream& stream);
  Buffer& workspace() { return (shared_workspace_ != nullptr ? *shared_workspace_ : own_workspace_).memory; }

  MlpPlanOptions plan_options_;
  MlpPlan plan_;  // for inputs of the last call's dtype
  Float8Workspace own_workspace_;
  Float8Workspace* shared_workspace_;  // default: none
  LinearOwner up_;
  LinearOwner down_;
  OwnerMemory saved_memory_;
  LinearSaved saved_stamp_{};
  MlpForward saved_{};  // the caller's tensors of the last forward()
};

// options.norm: its other fields count.
class LayerNormMlp : public Mlp {
 public:
  LayerNormMlp(Backend& backend, MlpShape shape, LinearConfig config, MlpOptions options = {})
      : Mlp(backend, shape, config, with_norm(NormKind::layer, std::move(options))) {}
};

class RMSNormMlp : public Mlp {
 public:
  RMSNormMlp(Backend& backend, MlpShape shape, LinearConfig config, MlpOptions options = {})
      : Mlp(backend, shape, config, with_norm(NormKind::rms, std::move(options))) {}
};

}  // namespace ingot
