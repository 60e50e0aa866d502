// What the functions of modules of several parts take (norm_linear_functions.h, mlp_functions.h): their tensors.
#pragma once

#include <array>
#include <optional>

#include "ingot/nn/linear/linear_tensors.h"
#include "ingot/nn/modules/module_plans.h"

namespace ingot {

// gamma and beta [K] have the input's dtype; only those that the plan has. The rest as in LinearForwardTensors.
struct NormLinearForwardTensors {
  Tensor input;
  Tensor gamma{};
  Tensor beta{};
  Tensor weight{};
  Tensor bias{};
  Tensor output;
  PointwiseTensors epilogue_inputs{};
  Float8View codes{};
  std::optional<MemoryRegion> weight_into{};
  Stream* codes_from = nullptr;
  LinearScales scales{};
  LinearSaved* saved = nullptr;
  MemoryRegion scratch{};
};

// grad_gamma and grad_beta [K] come with grad_input, are both f32 or both of the input's dtype, and are wanted if the
// norm has gamma. The rest as in LinearBackwardTensors.
struct NormLinearBackwardTensors {
  const LinearSaved* saved = nullptr;
  Tensor grad_output;
  Tensor grad_output_amax{};  // as LinearBackwardTensors'; only if plan.linear.takes_grad_output_amax()
  Tensor grad_input{};
  Tensor grad_gamma{};
  Tensor grad_beta{};
  Tensor grad_weight{};
  Tensor grad_bias{};
  bool accumulate = false;
  Tensor input{};  // input, gamma and beta: only if plan.backward_reads_input() of the gradients
  Tensor gamma{};
  Tensor beta{};  // only if plan.linear casts its input again (OtherCodes::again)
  Tensor weight{};
  Tensor output{};
  PointwiseTensors epilogue_inputs{};
  Float8View codes{};
  LinearScales scales{};
  MemoryRegion scratch{};
  // [M, K], of the input's dtype: the gradient of the normalised values by other layers after this norm, added to this
  // layer's before the norm's backward. Without a norm it may be grad_input itself. Only with grad_input.
  Tensor grad_values{};
};

// ---- an MLP --------------------------------------------------------------------------------------------------------

// What each of the two layers has, as in LinearForwardTensors.
struct MlpLayerForward {
  Tensor weight{};
  Tensor bias{};
  Float8View codes{};
  std::optional<MemoryRegion> weight_into{};
  Stream* codes_from = nullptr;
  LinearScales scales{};
};

// The first layer's weight is [H, K], or gated [2 * H, K]: the gate's rows, then those of up. Its bias likewise.
struct MlpForwardTensors {
  Tensor input;    // [M, K]
  Tensor gamma{};  // [K], as NormLinearForwardTensors has them
  Tensor beta{};
  Tensor output;  // [M, K]
  MlpLayerForward up{};
  MlpLayerForward down{};
  LinearSaved* saved = nullptr;  // null: keeps nothing
  MemoryRegion scratch{};
};

// As in LinearBackwardTensors.
struct MlpLayerBackward {
  Tensor grad_weight{};
  Tensor grad_bias{};
  Tensor weight{};
  Float8View codes{};
  LinearScales scales{};
};

// input, gamma and beta are read as NormLinearBackwardTensors says.
struct MlpBackwardTensors {
  const LinearSaved* saved = nullptr;
  Tensor grad_output;
  Tensor grad_input{};
  Tensor grad_gamma{};
  Tensor grad_beta{};
  bool accumulate = false;  // of the weight gradients that are given
  Tensor input{};
  Tensor gamma{};
  Tensor beta{};
  MlpLayerBackward up{};
  MlpLayerBackward down{};
  MemoryRegion scratch{};
};

}  // namespace ingot
