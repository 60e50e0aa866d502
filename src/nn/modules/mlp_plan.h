// What an MLP does, as a plain value: two linear layers (linear_plan.h) with an activation between them, and perhaps a
// norm in front. mlp_functions.h runs it; Mlp and GatedMlp own the memory of one.
//
//   plain:  output = activation(norm(input) @ up^T + up_bias) @ down^T + down_bias
//   gated:  output = activation(gate, up) @ down^T + down_bias, with [gate, up] = norm(input) @ gate_up^T +
//   gate_up_bias
//
// The first layer's output [M, hidden], or [M, 2 * hidden] with gate in front of up, is kept in high precision; the
// cast of the second layer's input computes the activation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "ingot/api.h"
#include "ingot/nn/modules/norm_linear_plan.h"

namespace ingot {

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

}  // namespace ingot
