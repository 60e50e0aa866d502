// A LayerNorm or RMSNorm fused with the linear layer after it. The layer's casts compute the normalised values from
// per-row statistics; the values are written to memory only if a GEMM reads them in high precision.
//
//   LayerNormLinear layer(backend, {.linear = {.in_features = K, .out_features = N, .bias = true}}, rowwise());
//   layer.forward({.input = x, .gamma = g, .beta = b, .weight = w, .bias = c, .output = y}, stream);
//   layer.backward({.grad_output = gy, .grad_input = gx, .grad_gamma = gg, .grad_beta = gb, .grad_weight = gw},
//                  stream);
//
// For backward it keeps, besides what Float8Linear keeps, the mean and rstd of each row and a view of the input and of
// gamma and beta, which must stay alive and unchanged. No input of a call may overlap any of its outputs.
//
// The layer owns memory, scales and the weight's codes; what it computes are the functions of norm_linear_functions.h.
#pragma once

#include <cstddef>

#include "ingot/api.h"
#include "ingot/codegen/norm/norm_spec.h"
#include "ingot/nn/modules/float8_linear.h"
#include "ingot/nn/modules/norm_linear_functions.h"

namespace ingot {

struct NormLinearShape {
  LinearShape linear{};
  bool affine = true;  // has gamma, and as a LayerNorm beta
  float eps = 1e-5F;
  bool zero_centred = false;  // as NormOptions::zero_centred
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
  bool keep_for_backward = true;
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

class INGOT_API NormLinear {
 public:
  // The norm is the fusion's prologue, so options.fusion.prologue must be empty. Throws as Float8Linear does.
  NormLinear(NormKind kind, Backend& backend, NormLinearShape shape, LinearConfig config,
             const LinearOptions& options = {});

  // As Float8Linear::forward().
  void forward(const NormLinearForward& tensors, Stream& stream);
  // As Float8Linear::recompute().
  void recompute(const NormLinearForward& tensors, Stream& stream);
  void backward(const NormLinearBackward& tensors, Stream& stream);

  void weight_changed() { owner_.weight_changed(); }
  // As Float8Linear::release_saved() and release().
  void release_saved();
  void release();
  const LinearConfig& config() const { return plan_.linear.config; }
  // Device memory held for the coming backward(): what Float8Linear::saved_bytes() counts, and the norm's statistics.
  std::size_t saved_bytes() const;
  // For a WeightCasts, as Float8Linear's.
  OwnedLinear linear_of(Dtype weight);

 private:
  // What was kept and cast by another dtype's plan is then gone.
  void plan_for(Dtype input);
  static NormLinearForwardTensors forward_tensors(const NormLinearForward& tensors);
  NormLinearBackwardTensors backward_tensors(const NormLinearBackward& tensors) const;
  void run_pass(LinearPass pass, const NormLinearForward& tensors, Stream& stream);

  NormKind kind_;
  NormLinearShape shape_;
  NormLinearPlan plan_;  // for inputs of the last call's dtype
  LinearOwner owner_;
  OwnerMemory saved_memory_;
  LinearSaved saved_stamp_{};
  NormLinearForward saved_{};  // the caller's tensors of the last forward()
};

class LayerNormLinear : public NormLinear {
 public:
  LayerNormLinear(Backend& backend, NormLinearShape shape, LinearConfig config, const LinearOptions& options = {})
      : NormLinear(NormKind::layer, backend, shape, config, options) {}
};

class RMSNormLinear : public NormLinear {
 public:
  RMSNormLinear(Backend& backend, NormLinearShape shape, LinearConfig config, const LinearOptions& options = {})
      : NormLinear(NormKind::rms, backend, shape, config, options) {}
};

}  // namespace ingot
