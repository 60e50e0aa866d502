// A LayerNorm or RMSNorm fused with the linear layer behind it. The layer's casts compute the normalised values from
// per-row statistics; the values are written to memory only if a GEMM reads them in high precision.
//
//   LayerNormLinear layer(backend, {.linear = {.in_features = K, .out_features = N, .bias = true}}, rowwise());
//   layer.forward({.input = x, .gamma = g, .beta = b, .weight = w, .bias = c, .output = y}, stream);
//   layer.backward({.grad_output = gy, .grad_input = gx, .grad_gamma = gg, .grad_beta = gb, .grad_weight = gw},
//   stream);
//
// For backward it keeps, besides what Float8Linear keeps, the mean and rstd of each row and a view of the input, which
// must stay alive and unchanged. No input of a call may overlap any of its outputs. Every forward() keeps what
// backward() needs.
#pragma once

#include <cstddef>

#include "ingot/api.h"
#include "ingot/codegen/norm/norm_spec.h"
#include "ingot/nn/float8_linear.h"

namespace ingot {

struct NormLinearShape {
  LinearShape linear{};
  bool affine = true;  // has gamma, and as a LayerNorm beta
  float eps = 1e-5F;
};

// input [M, K], gamma [K] and beta [K] have the layer's dtype; gamma and beta only with `affine`, beta only for
// LayerNorm. The rest as in LinearForward.
struct NormLinearForward {
  Tensor input;
  Tensor gamma{};
  Tensor beta{};
  Tensor weight;
  Tensor bias{};
  Tensor output;
  PointwiseTensors epilogue_inputs{};
};

// Gradients that are not wanted may stay default tensors; those of gamma and beta come only with grad_input. grad_gamma
// and grad_beta [K] are both f32 or both of the layer's dtype. The rest as in LinearBackward.
struct NormLinearBackward {
  Tensor grad_output;
  Tensor grad_input{};
  Tensor grad_gamma{};
  Tensor grad_beta{};
  Tensor grad_weight{};
  Tensor grad_bias{};
  bool accumulate = false;
};

// The gradient of the normalised values, used within one backward(). Layers on one stream can share it.
struct NormWorkspace {
  OwnedTensor grad_values;
};

class INGOT_API NormLinear {
 public:
  // The norm is the fusion's prologue, so options.fusion.prologue must be empty. Throws as Float8Linear does.
  NormLinear(NormKind kind, Backend& backend, NormLinearShape shape, LinearConfig config, LinearOptions options = {},
             NormWorkspace* workspace = nullptr);

  void forward(const NormLinearForward& tensors, Stream& stream);
  void backward(const NormLinearBackward& tensors, Stream& stream);

  void weight_changed() { linear_.weight_changed(); }
  const Float8Linear& linear() const { return linear_; }
  // Float8Linear's saved_bytes() plus the norm's statistics.
  std::size_t saved_bytes() const;

 private:
  // The inputs of the norm as an expression of the layer's input: (x - mean[row]) * rstd[row] * gamma[col] + beta[col].
  PointwiseTensors prologue_inputs(const NormLinearForward& tensors) const;
  void check_forward(const NormLinearForward& tensors) const;
  void check_backward(const NormLinearBackward& tensors) const;
  LinearForward linear_forward(const NormLinearForward& tensors) const;

  Backend* backend_;
  NormKind kind_;
  NormLinearShape shape_;
  Float8Linear linear_;
  bool casts_input_;  // otherwise the norm writes the values for GEMMs in high precision
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
