// LayerNorm or RMSNorm and the linear layer behind it. The normalised values are computed on the way into the layer's
// casts, from statistics of each row, and are written out only where a GEMM reads them in high precision.
//
//   LayerNormLinear layer(backend, {.linear = {.in_features = K, .out_features = N, .bias = true}}, rowwise());
//   layer.forward({.input = x, .gamma = g, .beta = b, .weight = w, .bias = c, .output = y}, stream);
//   layer.backward({.grad_output = gy, .grad_input = gx, .grad_gamma = gg, .grad_beta = gb, .grad_weight = gw},
//   stream);
//
// Kept for backward, besides what Float8Linear keeps: mean and rstd of each row, and a view of the input, which must
// stay alive and unchanged. Nothing that a call is given overlaps anything that it writes. A forward() always keeps
// what backward() needs.
#pragma once

#include <cstddef>

#include "ingot/codegen/norm/norm_spec.h"
#include "ingot/nn/float8_linear.h"

namespace ingot {

struct NormLinearShape {
  LinearShape linear{};
  bool affine = true;  // gamma, and beta of a LayerNorm
  float eps = 1e-5F;
};

// input[M, K], gamma[K] and beta[K] (affine; beta of LayerNorm only) of the layer's dtype; the rest as LinearForward.
struct NormLinearForward {
  Tensor input;
  Tensor gamma{};
  Tensor beta{};
  Tensor weight;
  Tensor bias{};
  Tensor output;
  PointwiseTensors epilogue_inputs{};
};

// Gradients that are not wanted may be left out, those of gamma and beta together with grad_input. grad_gamma and
// grad_beta [K] are both of f32, or both of the layer's dtype; the rest as LinearBackward.
struct NormLinearBackward {
  Tensor grad_output;
  Tensor grad_input{};
  Tensor grad_gamma{};
  Tensor grad_beta{};
  Tensor grad_weight{};
  Tensor grad_bias{};
  bool accumulate = false;
};

// The gradient of the normalised values, within one backward(). Layers on one stream can share it.
struct NormWorkspace {
  OwnedTensor grad_values;
};

class NormLinear {
 public:
  // The fusion's prologue is the norm's: leave it empty. Throws as Float8Linear does.
  NormLinear(NormKind kind, Backend& backend, NormLinearShape shape, LinearConfig config, LinearOptions options = {},
             NormWorkspace* workspace = nullptr);

  void forward(const NormLinearForward& tensors, Stream& stream);
  void backward(const NormLinearBackward& tensors, Stream& stream);

  void weight_changed() { linear_.weight_changed(); }
  const Float8Linear& linear() const { return linear_; }
  // As Float8Linear's, with the statistics.
  std::size_t saved_bytes() const;

 private:
  // The norm as an expression of the input: (x - mean[row]) * rstd[row] * gamma[col] + beta[col].
  PointwiseTensors prologue_inputs(const NormLinearForward& tensors) const;
  void check_forward(const NormLinearForward& tensors) const;
  void check_backward(const NormLinearBackward& tensors) const;
  LinearForward linear_forward(const NormLinearForward& tensors) const;

  Backend* backend_;
  NormKind kind_;
  NormLinearShape shape_;
  Float8Linear linear_;
  bool casts_input_;  // else the values are written for a GEMM in high precision, by the norm itself
  NormWorkspace* shared_workspace_;
  NormWorkspace own_workspace_;

  OwnedTensor mean_;
  OwnedTensor rstd_;
  OwnedTensor values_;
  Tensor saved_input_{};
  Tensor saved_gamma_{};
  bool has_forward_ = false;
};

class LayerNormLinear : public NormLinear {
 public:
  LayerNormLinear(Backend& backend, NormLinearShape shape, LinearConfig config, LinearOptions options = {},
                  NormWorkspace* workspace = nullptr)
      : NormLinear(NormKind::layer, backend, shape, config, std::move(options), workspace) {}
};

class RMSNormLinear : public NormLinear {
 public:
  RMSNormLinear(Backend& backend, NormLinearShape shape, LinearConfig config, LinearOptions options = {},
                NormWorkspace* workspace = nullptr)
      : NormLinear(NormKind::rms, backend, shape, config, std::move(options), workspace) {}
};

}  // namespace ingot
