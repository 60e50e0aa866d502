// Checks the arguments of the functions of experts_mlp.h before anything is enqueued.
#pragma once

#include "ingot/nn/modules/experts_mlp_tensors.h"

namespace ingot {

void check_experts_mlp_forward(const ExpertsMlpPlan& plan, Backend& backend, const ExpertsMlpForwardTensors& tensors,
                               const LinearRun& run);
void check_experts_mlp_backward(const ExpertsMlpPlan& plan, Backend& backend, const ExpertsMlpBackwardTensors& tensors,
                                const LinearRun& run);
void check_experts_mlp_input_gradient(const ExpertsMlpPlan& plan, Backend& backend,
                                      const ExpertsMlpInputGradientTensors& tensors, const LinearRun& run);
void check_experts_mlp_weight_gradients(const ExpertsMlpPlan& plan, Backend& backend,
                                        const ExpertsMlpWeightGradientTensors& tensors, const LinearRun& run);

}  // namespace ingot
