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
  // Adds one or two gradients of the values by other layers (NormLinearBackwardTensors::grad_values).
  std::array<ElementwiseSpec, 2> add_grad_values{};
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

}  // namespace ingot
