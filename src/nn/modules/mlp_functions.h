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

#include "ingot/api.h"
#include "ingot/nn/modules/module_tensors.h"

namespace ingot {

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
