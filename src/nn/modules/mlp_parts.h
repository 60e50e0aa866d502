// The parts that an MLP consists of, with their tensors: what mlp_functions.cpp enqueues and mlp_checks.cpp asks for.
#pragma once

#include "ingot/nn/linear/linear_parts.h"
#include "ingot/nn/linear/memory_watch.h"
#include "ingot/nn/modules/mlp_functions.h"
#include "ingot/nn/modules/norm_linear_functions.h"

namespace ingot {

struct MlpForwardParts {
  NormLinearForwardTensors up{};
  LinearForwardTensors down{};
  LinearSaved up_saved{}, down_saved{};  // for up.saved and down.saved, if the pass keeps anything
};

struct MlpBackwardParts {
  LinearBackwardTensors down{};
  NormLinearBackwardTensors up{};        // if a gradient reaches it
  LinearSaved down_saved{}, up_saved{};  // for down.saved and up.saved
  Tensor first{};                        // of the first layer's output: all, or the gate
  Tensor second{};                       // the other half, of a gated MLP
  Tensor grad_activation{};
  Tensor grad_first{}, grad_second{};
};

// The passes of the two layers: a recompute needs the first layer's output.
inline LinearPass pass_of_up(LinearPass pass) { return pass == LinearPass::recompute ? LinearPass::training : pass; }

MlpForwardParts forward_parts(const MlpPlan& plan, Device device, const MlpForwardTensors& tensors, LinearPass pass,
                              bool observed);
MlpBackwardParts backward_parts(const MlpPlan& plan, Device device, const MlpBackwardTensors& tensors, bool observed);

// The layers' owners, which give their scales and codes; without them the tensors have those.
struct MlpOwners {
  LinearPart* up = nullptr;
  LinearPart* down = nullptr;
};

// The same without checks.
void enqueue_mlp_pass(const MlpPlan& plan, Backend& backend, const MlpForwardTensors& tensors, LinearPass pass,
                      const LinearRun& run, const MlpOwners& owners = {});
void enqueue_mlp_backward(const MlpPlan& plan, Backend& backend, const MlpBackwardTensors& tensors,
                          const LinearRun& run, const MlpOwners& owners = {});

// As memory_watch.h says.
void check_held(const AllocationCheck& check, const MlpForwardTensors& tensors);
void check_held(const AllocationCheck& check, const MlpBackwardTensors& tensors);
void watch(Watch& watch, const MlpPlan& plan, const MlpForwardTensors& tensors);
void watch(Watch& watch, const MlpPlan& plan, const MlpBackwardTensors& tensors);

// What they ask of their arguments. `owner`: asks only for the caller's tensors.
void check_mlp_pass(const MlpPlan& plan, Backend& backend, const MlpForwardTensors& tensors, LinearPass pass,
                    const LinearRun& run, bool owner);
void check_mlp_backward(const MlpPlan& plan, Backend& backend, const MlpBackwardTensors& tensors, const LinearRun& run,
                        bool owner);

}  // namespace ingot
