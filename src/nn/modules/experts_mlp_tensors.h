// The plan of experts' MLPs, and what their functions (experts_mlp.h) take.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "ingot/api.h"
#include "ingot/nn/linear/grouped_linear.h"
#include "ingot/nn/modules/module_plans.h"

namespace ingot {

struct ExpertsMlpPlanOptions {
  std::string name = "experts";  // its layers are "experts.up", or "experts.gate_up", and "experts.down"
  LinearConfig config{};         // as GroupedLinearPlanOptions::config
  std::int64_t experts = 0;
  MlpShape shape{};                         // of one expert; without biases of both layers
  bool up_bias = false;                     // of the first layer
  LinearDtypes dtypes{};                    // of input and weights; outputs have the input's
  std::string activation = "silu(x) * up";  // as MlpPlanOptions::activation
  bool fast_math = false;
  bool grad_up_weight = true, grad_down_weight = true;  // as LinearPlanOptions::grad_weight, of each layer
  std::string subject{};                                // what messages call it; default: experts "<name>"
};

// What forward keeps for the gradients of weights, of M rows: each layer's, if the plan has that layer's gradient.
// Forward also keeps the first layer's output, in a tensor of its own. That is the largest by far, and the caller may
// free it once backward has read it.
struct ExpertsMlpSavedMemory {
  std::size_t up_begin = 0, up_bytes = 0;  // the regions of the layers
  std::size_t down_begin = 0, down_bytes = 0;
  std::size_t bytes = 0;
};

struct ExpertsMlpForwardScratch {
  TensorPlace hidden{};                          // where nothing is kept
  TensorPlace rows{};                            // [M, K]: the second layer's output
  std::size_t layer_begin = 0, layer_bytes = 0;  // of either layer, one after the other
  std::size_t bytes = 0;
};

// The codes of a gradient of a layer's output, for one of its gradients, and their scale_inv. Tensorwise, those for
// grad_input have the scale_inv of the others.
struct ExpertsMlpCodes {
  TensorPlace codes{};
  TensorPlace scale_inv{};
};

// What backward keeps for the other gradients: codes [M, N] of the gradient of the first layer's output, and transposed
// codes [N, M] of both layers'. Each gradient has a region of its own, which is free again once it is computed. How
// many bytes a region has does not depend on which other gradients are wanted.
struct ExpertsMlpKeptMemory {
  ExpertsMlpCodes input{};
  ExpertsMlpCodes up{};
  ExpertsMlpCodes down{};
  std::size_t input_bytes = 0, up_bytes = 0, down_bytes = 0;
};

struct ExpertsMlpBackwardScratch {
  TensorPlace grad_hidden{};              // [M, H] or [M, 2 * H]
  TensorPlace row_amax{}, column_amax{};  // f32[M], f32[H] or f32[2 * H]: if plan.finds_maxima(wants)
  // Are gone when the codes of grad_hidden are made, in whose regions they are if these have room for them.
  ExpertsMlpCodes down{};         // [M, K]: of grad_output
  TensorPlace grad_activation{};  // [M, H]
  bool down_is_in_kept_input = false, grad_activation_is_in_kept_up = false;
  // Codes of the second layer's weights, where they are cast again; in the memory of grad_hidden, which comes after.
  std::size_t weight_begin = 0, weight_bytes = 0;
  std::size_t bytes = 0;
};

struct ExpertsMlpInputGradientScratch {
  TensorPlace grad_rows{};                         // [M, K]
  std::size_t weight_begin = 0, weight_bytes = 0;  // codes of the first layer's weights, where they are cast again
  std::size_t bytes = 0;
};

struct ExpertsMlpGradients {
  bool input = true;
  bool router = true;
  bool up_weight = true;
  bool down_weight = true;
  bool up_bias = false;

  // Is anything wanted that comes before the second layer?
  bool reaches_hidden() const { return input || router || up_weight || up_bias; }
  LinearGradients of_up() const { return {.input = input, .weight = up_weight, .bias = false}; }
  LinearGradients of_down() const { return {.input = reaches_hidden(), .weight = down_weight, .bias = false}; }
};

struct INGOT_API ExpertsMlpPlan {
  std::string subject{};
  MlpShape shape{};
  bool gated = false;
  GroupedLinearPlan up{};
  GroupedLinearPlan down{};                // its prologue is the activation times the router's weight
  Pointwise by_x{}, by_up{}, by_router{};  // the prologue's derivatives times the gradient of its value
  bool fast_math = false;
  std::uint64_t identity = 0;  // as LinearPlan::identity

  std::int64_t hidden_columns() const { return gated ? 2 * shape.hidden : shape.hidden; }
  // Of x and, gated, of up; with the sums over rows that are the router's gradients, and with the maxima that the cast
  // of these gradients would look for, one for each row and one for each column.
  ElementwiseSpec activation_gradients(const ExpertsMlpGradients& wants) const;
  bool finds_maxima(const ExpertsMlpGradients& wants) const;

  ExpertsMlpSavedMemory saved_memory(std::int64_t rows) const;
  // observed: for runs whose observer wants values.
  ExpertsMlpForwardScratch forward_scratch(std::int64_t rows, LinearPass pass = LinearPass::training,
                                           bool observed = false) const;
  ExpertsMlpKeptMemory kept_memory(std::int64_t rows, const ExpertsMlpGradients& wants = {}) const;
  ExpertsMlpBackwardScratch backward_scratch(std::int64_t rows, const ExpertsMlpGradients& wants = {}) const;
  ExpertsMlpInputGradientScratch input_gradient_scratch(std::int64_t rows) const;
};

// T tokens, whose experts have M rows in all: those of expert 0, then of expert 1, and so on. Everything is on the
// device, and the host reads none of it.
struct ExpertsRouting {
  RowIndex tokens{};  // int32[M]: the token of each row
  // int32[T * k]: the rows of each token, in the order in which they are summed. One that is no row counts as nothing.
  RowIndex rows{};
  Tensor weights{};   // f32[1, M]: the router's weight of each row
  ExpertEnds ends{};  // of rows; without a capacity
  // false: rows from the last end on are no expert's, such as those whose experts other ranks have. Then no entry of
  // `rows` names them.
  bool all_have_experts = true;
};

struct ExpertsMlpForwardTensors {
  Tensor input;  // [T, K]
  ExpertsRouting routing{};
  Tensor up_bias{};          // [experts, H or 2 * H] of plan.up.bias_dtype(), dense: if plan.up.bias
  Tensor output;             // [T, K]
  Float8View up_codes{};     // cast_expert_weights() of plan.up
  Float8View down_codes{};   // and of plan.down
  LinearScales up_scales{};  // if delayed: as GroupedLinearForwardTensors::scales
  LinearScales down_scales{};
  LinearSaved* saved = nullptr;  // of plan.saved_memory(M); null: keeps nothing
  Tensor hidden{};               // [M, H] or [M, 2 * H], dense: written for backward, if there is a `saved`
  MemoryRegion scratch{};        // plan.forward_scratch(M, ...), unless the stream's allocator gives it
};

// A layer's weights in backward, values or codes: as GroupedLinearBackwardTensors has them.
struct ExpertsBackwardWeight {
  Tensor weight{};
  Tensor weight_amax{};
  Float8View codes{};
  LinearScale scale{};  // if it is delayed and the weight is cast here
};

struct ExpertsMlpBackwardTensors {
  const LinearSaved* saved = nullptr;  // its memory is not read: experts_mlp_weight_gradients() does
  Tensor hidden{};                     // forward's, if wants.reaches_hidden(); nothing reads it after this call
  ExpertsRouting routing{};            // forward's
  // All that this step computes: those of the input and the weights by the functions below, for which this call keeps
  // what they need.
  ExpertsMlpGradients wants{};
  Tensor grad_output;            // [T, K]
  Tensor grad_router{};          // f32[1, M]: of routing.weights; of rows without experts it is unspecified
  Tensor grad_up_bias{};         // [experts, H or 2 * H], dense, as GroupedLinearBackwardTensors::grad_bias
  ExpertsBackwardWeight down{};  // if wants.reaches_hidden()
  LinearScales up_scales{};      // if delayed: those of the gradients of each layer's output
  LinearScales down_scales{};
  MemoryRegion kept_input{};  // plan.kept_memory(M, wants)
  MemoryRegion kept_up{};
  MemoryRegion kept_down{};
  MemoryRegion scratch{};  // plan.backward_scratch(M, wants)
};

struct ExpertsMlpInputGradientTensors {
  const LinearSaved* saved = nullptr;  // as ExpertsMlpBackwardTensors has it
  RowIndex rows{};                     // forward's ExpertsRouting::rows
  ExpertEnds ends{};                   // forward's
  ExpertsMlpGradients wants{};         // backward's
  MemoryRegion kept_input{};           // as backward left them
  MemoryRegion kept_up{};
  ExpertsBackwardWeight up{};
  Tensor grad_input;       // [T, K]
  MemoryRegion scratch{};  // plan.input_gradient_scratch(M)
};

struct ExpertsMlpWeightGradientTensors {
  const LinearSaved* saved = nullptr;
  ExpertEnds ends{};            // forward's
  ExpertsMlpGradients wants{};  // backward's
  MemoryRegion kept_up{};       // as backward left them
  MemoryRegion kept_down{};
  // [experts * H or 2 * H, K] and [experts * K, H], as GroupedLinearBackwardTensors::grad_weight. Only those that are
  // given are computed: a call for each lets go of what the first one read.
  Tensor grad_up{};
  Tensor grad_down{};
  bool accumulate_up = false, accumulate_down = false;
};

}  // namespace ingot
