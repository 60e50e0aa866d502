// The plans of modules of several parts: a norm and the layer after it, and MLPs (MlpPlan).
//
// What a norm and the linear layer after it do, as a plain value: LinearPlan (linear_plan.h) for a layer whose input
// is normalised. norm_linear_functions.h runs it; NormLinear owns the memory of one.
//
// Most layers cast the normalised values straight from the input and each row's statistics. Where all GEMMs that read
// the input are in high precision, the norm writes the values.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include "ingot/api.h"
#include "ingot/codegen/norm/norm_spec.h"
#include "ingot/nn/linear/linear_plan.h"

namespace ingot {

struct NormOptions {
  NormKind kind = NormKind::layer;
  bool affine = true;  // has gamma, and as a LayerNorm beta
  float eps = 1e-5F;
  bool zero_centred = false;  // gamma is given as its difference from 1: the norm multiplies by gamma + 1
};

struct NormLinearPlanOptions {
  LinearPlanOptions linear{};                       // without a prologue: the norm is the prologue
  std::optional<NormOptions> norm = NormOptions{};  // none: the linear layer alone, for modules that may have a norm
  std::string subject{};                            // what messages call the module; default: norm linear "<name>"
};

// What forward keeps for backward.
struct INGOT_API NormLinearSavedMemory {
  TensorPlace mean{};    // f32[M]; LayerNorm only
  TensorPlace rstd{};    // f32[M]
  TensorPlace values{};  // [M, K], if the norm writes them and grad_weight reads them
  LinearSavedMemory layer{};
  std::size_t layer_begin = 0;  // its region's, in this one
  std::size_t bytes = 0;

  // The bytes of the tensors themselves, without the gaps between them.
  std::size_t bytes_of_parts() const;
};

struct NormLinearForwardScratch {
  TensorPlace mean{};  // as above, where nothing is kept
  TensorPlace rstd{};
  TensorPlace values{};
  std::size_t layer_begin = 0;
  std::size_t layer_bytes = 0;
  std::size_t bytes = 0;
};

struct NormLinearBackwardScratch {
  TensorPlace grad_values{};  // [M, K]: the gradient of the normalised values
  std::size_t layer_begin = 0;
  std::size_t layer_bytes = 0;
  std::size_t bytes = 0;
};

struct NormLinearMemory {
  LinearWeightMemory weight{};
  NormLinearSavedMemory saved{};
  NormLinearForwardScratch forward{};
  NormLinearBackwardScratch backward{};
};

struct INGOT_API NormLinearPlan {
  std::string subject{};
  std::optional<NormOptions> norm{};
  LinearPlan linear{};
  bool writes_values = false;  // the norm does; else the layer computes them, in its casts where it can
  std::uint64_t identity = 0;  // as LinearPlan::identity

  bool has_mean() const { return norm && norm->kind == NormKind::layer; }
  // gamma and beta are read by every forward, and gamma by the backward of grad_input.
  bool has_gamma() const { return norm && norm->affine; }
  bool has_beta() const { return has_gamma() && has_mean(); }
  // The values that the norm writes, for grad_weight.
  bool keeps_values() const { return writes_values && linear.trains_weight; }
  // The caller's input (and gamma and beta) again, in backward.
  bool backward_reads_input(const LinearGradients& wants) const {
    return (norm && wants.input) || (wants.weight && !writes_values && linear.grad_weight_reads_input());
  }

  // As LinearPlan's: by the tokens, before anything runs.
  NormLinearSavedMemory saved_memory(std::int64_t tokens) const;
  NormLinearForwardScratch forward_scratch(std::int64_t tokens, LinearPass pass = LinearPass::training,
                                           bool observed = false) const;
  NormLinearBackwardScratch backward_scratch(std::int64_t tokens, const LinearGradients& wants = {},
                                             bool observed = false) const;
  NormLinearMemory memory(std::int64_t tokens) const;
};

// Throws as linear_plan() does, and Error{invalid_argument} for a prologue together with a norm.
INGOT_API NormLinearPlan norm_linear_plan(const NormLinearPlanOptions& options);

// What an MLP does, as a plain value: two linear layers (linear_plan.h) with an activation between them, and perhaps a
// norm in front. mlp_functions.h runs it; Mlp and GatedMlp own the memory of one.
//
//   plain:  output = activation(norm(input) @ up^T + up_bias) @ down^T + down_bias
//   gated:  output = activation(gate, up) @ down^T + down_bias, with [gate, up] = norm(input) @ gate_up^T +
//   gate_up_bias
//
// The first layer's output [M, hidden], or [M, 2 * hidden] with gate in front of up, is kept in high precision; the
// cast of the second layer's input computes the activation.
struct MlpShape {
  std::int64_t features = 0;  // K, of input and output
  std::int64_t hidden = 0;    // H
  bool bias = false;          // of both layers
};

struct MlpPlanOptions {
  std::string name = "mlp";  // its layers are "mlp.up", or "mlp.gate_up", and "mlp.down"
  LinearConfig config{};
  MlpShape shape{};
  LinearDtypes dtypes{};               // output: the MLP's; the hidden values have the input's
  std::string activation = "gelu(x)";  // an expression of x; with the matrix `up` too, x is the gate
  bool fast_math = false;              // as LinearFusion::fast_math
  std::optional<NormOptions> norm{};   // in front
  bool grad_weight = true;             // as LinearPlanOptions::grad_weight, of both layers
  std::string subject{};               // what messages call the MLP; default: MLP "<name>"
  std::string layer_subject{};         // and its layers; default: linear "<name>.up" ...
};

// Which gradients a backward computes. Those of the norm come with the input's.
struct MlpGradients {
  bool input = true;
  bool up_weight = true;
  bool up_bias = true;
  bool down_weight = true;
  bool down_bias = true;

  LinearGradients of_up() const { return {.input = input, .weight = up_weight, .bias = up_bias}; }
  bool reaches_up() const { return input || up_weight || up_bias; }
  LinearGradients of_down() const { return {.input = reaches_up(), .weight = down_weight, .bias = down_bias}; }
};

// What forward keeps for backward. The parts' own regions begin at up_begin and down_begin.
struct INGOT_API MlpSavedMemory {
  TensorPlace hidden{};  // [M, H] or [M, 2 * H]: the first layer's output
  NormLinearSavedMemory up{};
  LinearSavedMemory down{};
  std::size_t up_begin = 0;
  std::size_t down_begin = 0;
  std::size_t bytes = 0;

  // The bytes of the tensors themselves, without the gaps between them.
  std::size_t bytes_of_parts() const;
};

// One part's scratch is free again when the next part runs.
struct MlpForwardScratch {
  TensorPlace hidden{};  // where nothing is kept
  std::size_t parts_begin = 0;
  std::size_t parts_bytes = 0;
  std::size_t bytes = 0;
};

struct MlpBackwardScratch {
  TensorPlace grad_activation{};  // [M, H]
  TensorPlace grad_hidden{};      // [M, H] or [M, 2 * H]
  TensorPlace grad_amax{};        // f32[1]: its largest |value|, if the first layer's backward takes it
  std::size_t parts_begin = 0;
  std::size_t parts_bytes = 0;
  std::size_t bytes = 0;
};

struct MlpMemory {
  LinearWeightMemory up_weight{};
  LinearWeightMemory down_weight{};
  MlpSavedMemory saved{};
  MlpForwardScratch forward{};
  MlpBackwardScratch backward{};
};

struct INGOT_API MlpPlan {
  std::string name{};
  std::string subject{};
  MlpShape shape{};
  bool gated = false;
  bool fast_math = false;
  NormLinearPlan up{};         // the norm and the first layer
  LinearPlan down{};           // with the activation as its prologue
  Pointwise by_x{};            // the activation's derivatives times grad_output
  Pointwise by_up{};           // gated only
  std::uint64_t identity = 0;  // as LinearPlan::identity

  // The activation's gradients in one pass: of x and, of a gated MLP, as the second one of up. amax: that of both.
  ElementwiseSpec activation_gradients(bool amax = false) const {
    return {.in = up.linear.dtypes.input, .pointwise = by_x, .second = by_up, .amax = amax, .fast_math = fast_math};
  }

  std::int64_t hidden_columns() const { return gated ? 2 * shape.hidden : shape.hidden; }

  // As LinearPlan's: by the tokens, before anything runs.
  MlpSavedMemory saved_memory(std::int64_t tokens) const;
  MlpForwardScratch forward_scratch(std::int64_t tokens, LinearPass pass = LinearPass::training,
                                    bool observed = false) const;
  MlpBackwardScratch backward_scratch(std::int64_t tokens, const MlpGradients& wants = {}, bool observed = false) const;
  MlpMemory memory(std::int64_t tokens) const;
};

// Throws as norm_linear_plan() does, and Error{invalid_spec} for an activation that is not such an expression.
INGOT_API MlpPlan mlp_plan(const MlpPlanOptions& options);

// The inputs of activation_gradients(), or of one of its expressions alone. grad_values: that of the activation's
// value.
INGOT_API PointwiseTensors activation_gradient_inputs(const ElementwiseSpec& gradients, const Tensor& up,
                                                      const Tensor& grad_values);

}  // namespace ingot
