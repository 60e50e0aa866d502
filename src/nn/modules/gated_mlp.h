// The gated MLP (SwiGLU) of Llama's layers: output = (silu(input @ gate_weight^T) * (input @ up_weight^T)) @
// down_weight^T. It runs two GEMMs, because gate and up share one weight; the cast of the second GEMM's input computes
// silu(gate) * up.
//
//   GatedMlp mlp(backend, {.features = 4096, .hidden = 14336}, rowwise());
//   mlp.forward({.input = x, .gate_up_weight = w13, .down_weight = w2, .output = y}, stream);
//   mlp.backward({.grad_output = gy, .grad_input = gx, .grad_gate_up_weight = gw13, .grad_down_weight = gw2}, stream);
//
// It is an Mlp (mlp.h), with the names of a gated one. For backward it keeps, besides what its two Float8Linear layers
// keep, gate and up: [M, 2 * hidden] of the layer's dtype.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string>

#include "ingot/api.h"
#include "ingot/nn/modules/mlp.h"

namespace ingot {

using GatedMlpShape = MlpShape;

// All tensors have one high-precision dtype, except where GatedMlpOptions gives another, and biases as
// LinearForward::bias says. input and output are [M, K]; gate_up_weight is [2 * H, K] and gate_up_bias [2 * H], the
// gate's H rows followed by the up projection's; down_weight is [K, H] and down_bias [K]; gamma and beta [K] only with
// a norm in front.
struct GatedMlpForward {
  Tensor input;
  Tensor gamma{};
  Tensor beta{};
  Tensor gate_up_weight;
  Tensor gate_up_bias{};
  Tensor down_weight;
  Tensor down_bias{};
  Tensor output;
  bool keep_for_backward = true;  // as LinearForward::keep_for_backward
};

// As MlpBackward.
struct GatedMlpBackward {
  Tensor grad_output;
  Tensor grad_input{};
  Tensor grad_gamma{};
  Tensor grad_beta{};
  Tensor grad_gate_up_weight{};
  Tensor grad_gate_up_bias{};
  Tensor grad_down_weight{};
  Tensor grad_down_bias{};
  bool accumulate = false;
};

struct GatedMlpOptions {
  std::string name = "mlp";  // its two layers are "mlp.gate_up" and "mlp.down"
  // An expression of gate (called x) and up.
  std::string activation = "silu(x) * up";
  std::optional<NormOptions> norm{};  // in front
  bool fast_math = false;
  std::optional<Dtype> weight_dtype{};  // as MlpOptions'
  std::optional<Dtype> bias_dtype{};
  std::optional<Dtype> output_dtype{};
  DelayedScaling* delayed = nullptr;
  Float8Workspace* workspace = nullptr;
  LayerObserver* observer = nullptr;
  Stream* side = nullptr;  // as LinearOptions::side
};

class INGOT_API GatedMlp {
 public:
  // Throws as Float8Linear does, and Error{invalid_spec} for an activation that is not an expression of x and up.
  GatedMlp(Backend& backend, GatedMlpShape shape, LinearConfig config, GatedMlpOptions options = {});

  void forward(const GatedMlpForward& tensors, Stream& stream);
  // As Mlp::recompute().
  void recompute(const GatedMlpForward& tensors, Stream& stream);
  void backward(const GatedMlpBackward& tensors, Stream& stream);

  void weights_changed() { mlp_.weights_changed(); }
  // As Float8Linear::release_saved() and release().
  void release_saved() { mlp_.release_saved(); }
  void release() { mlp_.release(); }
  const LinearConfig& config() const { return mlp_.config(); }
  std::size_t saved_bytes() const { return mlp_.saved_bytes(); }
  std::array<OwnedLinear, 2> linears_of(Dtype weight) { return mlp_.linears_of(weight); }

 private:
  Mlp mlp_;
};

}  // namespace ingot
