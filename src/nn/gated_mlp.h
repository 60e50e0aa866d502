// The gated MLP of Llama's layers (SwiGLU): output = (silu(input @ gate_weight^T) * (input @ up_weight^T)) @
// down_weight^T, in two GEMMs: gate and up are one weight. silu(gate) * up is computed within the cast of the second
// GEMM's input.
//
//   GatedMlp mlp(backend, {.features = 4096, .hidden = 14336}, rowwise());
//   mlp.forward({.input = x, .gate_up_weight = w13, .down_weight = w2, .output = y}, stream);
//   mlp.backward({.grad_output = gy, .grad_input = gx, .grad_gate_up_weight = gw13, .grad_down_weight = gw2}, stream);
//
// Kept for backward, besides what the two Float8Linear keep: gate and up, [M, 2 * hidden] of the layer's dtype.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ingot/nn/float8_linear.h"

namespace ingot {

struct GatedMlpShape {
  std::int64_t features = 0;  // K, of input and output
  std::int64_t hidden = 0;    // H
};

// All of one high-precision dtype. input and output [M, K]; gate_up_weight [2 * H, K]: the gate's H rows, then the
// up's; down_weight [K, H].
struct GatedMlpForward {
  Tensor input;
  Tensor gate_up_weight;
  Tensor down_weight;
  Tensor output;
};

// Gradients that are not wanted may be left out. Those of weights are of the layer's dtype or of f32, and are added to
// where accumulate.
struct GatedMlpBackward {
  Tensor grad_output;
  Tensor grad_input{};
  Tensor grad_gate_up_weight{};
  Tensor grad_down_weight{};
  bool accumulate = false;
};

struct GatedMlpOptions {
  std::string name = "mlp";  // its two layers are "mlp.gate_up" and "mlp.down"
  // Of gate ("x") and up.
  std::string activation = "silu(x) * up";
  bool fast_math = false;
  DelayedScaling* delayed = nullptr;
  Float8Workspace* workspace = nullptr;
  LayerObserver* observer = nullptr;
  Stream* side = nullptr;  // as LinearOptions has it
};

class GatedMlp {
 public:
  // Throws as Float8Linear does, and Error{invalid_spec} for an activation that is no expression of x and up.
  GatedMlp(Backend& backend, GatedMlpShape shape, LinearConfig config, GatedMlpOptions options = {});

  void forward(const GatedMlpForward& tensors, Stream& stream);
  void backward(const GatedMlpBackward& tensors, Stream& stream);

  void weights_changed();
  const Float8Linear& gate_up() const { return gate_up_; }
  const Float8Linear& down() const { return down_; }
  std::size_t saved_bytes() const;

 private:
  GatedMlp(Backend& backend, GatedMlpShape shape, const LinearConfig& config, const GatedMlpOptions& options,
           const Pointwise& activation);
  Tensor half(const OwnedTensor& both, bool second) const;

  Backend* backend_;
  GatedMlpShape shape_;
  bool fast_math_;
  Pointwise by_gate_;
  Pointwise by_up_;
  Float8Linear gate_up_;
  Float8Linear down_;
  OwnedTensor gate_up_values_;  // [M, 2 * H]
  OwnedTensor grad_hidden_;     // [M, H], within backward()
  OwnedTensor grad_gate_up_;    // [M, 2 * H], likewise
  bool has_forward_ = false;
};

}  // namespace ingot
