// The gated MLP (SwiGLU) of Llama's layers: output = (silu(input @ gate_weight^T) * (input @ up_weight^T)) @
// down_weight^T. It runs two GEMMs, because gate and up share one weight; the cast of the second GEMM's input computes
// silu(gate) * up.
//
//   GatedMlp mlp(backend, {.features = 4096, .hidden = 14336}, rowwise());
//   mlp.forward({.input = x, .gate_up_weight = w13, .down_weight = w2, .output = y}, stream);
//   mlp.backward({.grad_output = gy, .grad_input = gx, .grad_gate_up_weight = gw13, .grad_down_weight = gw2}, stream);
//
// For backward it keeps, besides what its two Float8Linear layers keep, gate and up: [M, 2 * hidden] of the layer's
// dtype.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ingot/api.h"
#include "ingot/nn/float8_linear.h"

namespace ingot {

struct GatedMlpShape {
  std::int64_t features = 0;  // K, of input and output
  std::int64_t hidden = 0;    // H
};

// All tensors have one high-precision dtype. input and output are [M, K]; gate_up_weight is [2 * H, K], the gate's H
// rows followed by the up projection's; down_weight is [K, H].
struct GatedMlpForward {
  Tensor input;
  Tensor gate_up_weight;
  Tensor down_weight;
  Tensor output;
};

// Gradients that are not wanted may stay default tensors. Weight gradients have the layer's dtype or f32; with
// `accumulate` the results are added to them.
struct GatedMlpBackward {
  Tensor grad_output;
  Tensor grad_input{};
  Tensor grad_gate_up_weight{};
  Tensor grad_down_weight{};
  bool accumulate = false;
};

struct GatedMlpOptions {
  std::string name = "mlp";  // its two layers are "mlp.gate_up" and "mlp.down"
  // An expression of gate (called x) and up.
  std::string activation = "silu(x) * up";
  bool fast_math = false;
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
