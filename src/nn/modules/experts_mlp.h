// The MLPs of a mixture of experts as functions of tensors: each token goes through those of some experts, and its
// output is the sum of theirs, weighted by the router. Like linear_functions.h, they keep nothing between calls.
//
//   plain:  output[t] = sum over the token's experts e of weight * activation(input[t] @ up[e]^T) @ down[e]^T
//   gated:  likewise with activation(gate, up), where [gate, up] = input[t] @ gate_up[e]^T
//
// The first layer may have a bias for each expert. A second's would be weight * bias[e] more in the output, which is
// for the caller to add: a product of the router's weights of all experts, [T, experts], and these biases.
//
//   const ExpertsMlpPlan plan = experts_mlp_plan({.config = rowwise(), .experts = E, .shape = {K, H}});
//   const Float8View up = cast_expert_weights(plan.up, backend, {.weight = w13, .into = region}, {stream});
//   const Float8View down = cast_expert_weights(plan.down, backend, {.weight = w2, .into = other}, {stream});
//   ExpertsMlpForwardTensors forward{.input = x, .routing = routing, .output = y, .saved = &saved};
//   forward.up_codes = up;
//   forward.down_codes = down;
//   experts_mlp_forward(plan, backend, forward, {stream});
//   experts_mlp_backward(plan, backend, {...}, {stream});           // of the router's weights
//   experts_mlp_input_gradient(plan, backend, {...}, {stream});     // from what backward left
//   experts_mlp_weight_gradients(plan, backend, {...}, {stream});   // likewise, also later
//
// The tokens' rows are not copied in high precision: the casts of input and grad_output gather them, and the last step
// of each direction sums a token's rows. The router's weight of a row is a factor of the activation's value, which
// changes no sum: weight * (value @ down^T) is (weight * value) @ down^T. So no output of an expert is kept.
#pragma once

#include <string>

#include "ingot/api.h"
#include "ingot/nn/modules/experts_mlp_tensors.h"

namespace ingot {

// gpt-oss's activation for ExpertsMlpPlanOptions: x * sigmoid(alpha * x) * (up + 1), where x is at most `limit` and up
// is within +-limit. Its own have alpha = 1.702 and limit = 7.
INGOT_API std::string clamped_swiglu(double alpha, double limit);

// Throws as grouped_linear_plan() and mlp_plan() do.
INGOT_API ExpertsMlpPlan experts_mlp_plan(const ExpertsMlpPlanOptions& options);

// Errors: Error{invalid_argument} that names the experts and the tensor, before anything is enqueued; then those of the
// backend. The work is on one stream: run.side stays null.
INGOT_API void experts_mlp_forward(const ExpertsMlpPlan& plan, Backend& backend,
                                   const ExpertsMlpForwardTensors& tensors, const LinearRun& run);
INGOT_API void experts_mlp_backward(const ExpertsMlpPlan& plan, Backend& backend,
                                    const ExpertsMlpBackwardTensors& tensors, const LinearRun& run);
INGOT_API void experts_mlp_input_gradient(const ExpertsMlpPlan& plan, Backend& backend,
                                          const ExpertsMlpInputGradientTensors& tensors, const LinearRun& run);
INGOT_API void experts_mlp_weight_gradients(const ExpertsMlpPlan& plan, Backend& backend,
                                            const ExpertsMlpWeightGradientTensors& tensors, const LinearRun& run);

}  // namespace ingot
