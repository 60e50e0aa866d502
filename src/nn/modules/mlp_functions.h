// An MLP as functions of tensors, in the way of linear_functions.h: they keep nothing between calls,
// take their memory as those do, and throw what those throw.
//
//   const MlpPlan plan = mlp_plan({.name = "mlp", .config = rowwise(), .shape = {K, H}, .activation = "silu(x) * up",
//                                  .norm = NormOptions{.kind = NormKind::rms}});
//   const Float8View up = cast_weight(plan.up.linear, backend, {.weight = w13, .into = region}, {stream});
//   const Float8View down = cast_weight(plan.down, backend, {.weight = w2, .into = other_region}, {stream});
//   mlp_forward(plan, backend, {.input = x, .gamma = g, .output = y, .up = {.codes = up}, .down = {.codes = down},
//                               .saved = &saved, .scratch = s}, {stream});
#pragma once

#include <optional>

#include "ingot/api.h"
#include "ingot/nn/linear/linear_functions.h"
#include "ingot/nn/modules/mlp_plan.h"

namespace ingot {

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

INGOT_API MlpGradients wanted_gradients(const MlpBackwardTensors& tensors);

INGOT_API void mlp_forward(const MlpPlan& plan, Backend& backend, const MlpForwardTensors& tensors,
                           const LinearRun& run);
// Makes what backward needs of a forward that kept nothing, from the same tensors. It multiplies by the first weight
// again, but not by the second: the output may be absent. Scratch: of LinearPass::recompute.
INGOT_API void mlp_recompute(const MlpPlan& plan, Backend& backend, const MlpForwardTensors& tensors,
                             const LinearRun& run);
// Are the backwards of both layers multiplies_together() (linear_functions.h)?
INGOT_API bool multiplies_together(const MlpPlan& plan, Backend& backend, const MlpBackwardTensors& tensors);
// run.side: as for linear_backward(), for both layers' weight gradients.
INGOT_API void mlp_backward(const MlpPlan& plan, Backend& backend, const MlpBackwardTensors& tensors,
                            const LinearRun& run);

}  // namespace ingot
