// The calls that modules of several parts consist of, with their tensors: what norm_linear_functions.cpp and
// mlp_functions.cpp enqueue and ask for.
#pragma once

#include "ingot/nn/linear/linear_step.h"
#include "ingot/nn/linear/memory_watch.h"
#include "ingot/nn/modules/module_tensors.h"

namespace ingot {

struct NormLinearForwardParts {
  NormSpec norm_spec{};
  NormTensors norm{};
  LinearForwardTensors layer{};
  LinearSaved layer_saved{};  // for layer.saved, if the pass keeps anything
};

struct NormLinearBackwardParts {
  LinearBackwardTensors layer{};
  LinearSaved layer_saved{};  // for layer.saved
  NormBackwardSpec norm_spec{};
  NormBackwardTensors norm{};  // if grad_input is wanted
};

NormLinearForwardParts forward_parts(const NormLinearPlan& plan, Device device, const NormLinearForwardTensors& tensors,
                                     LinearPass pass, bool observed);
NormLinearBackwardParts backward_parts(const NormLinearPlan& plan, Device device,
                                       const NormLinearBackwardTensors& tensors, bool observed);

// The same without checks, for modules that have checked all their parts before they run any.
void enqueue_norm_linear_pass(const NormLinearPlan& plan, Backend& backend, const NormLinearForwardTensors& tensors,
                              LinearPass pass, const LinearRun& run);
void enqueue_norm_linear_backward(const NormLinearPlan& plan, Backend& backend,
                                  const NormLinearBackwardTensors& tensors, const LinearRun& run);
// After a norm the linear layer's gradient of its input has the norm's dtype.
LinearGradientDtypes gradient_dtypes(const NormLinearPlan& plan, const NormLinearBackwardTensors& tensors);

// As memory_watch.h says.
void watch(Watch& watch, const NormLinearPlan& plan, const NormLinearForwardTensors& tensors);
void watch(Watch& watch, const NormLinearPlan& plan, const NormLinearBackwardTensors& tensors);
template <class Tensors>
void watch_norm(Watch& watch, const NormLinearPlan& plan, const Tensors& t, const LinearGradients& wants) {
  if (plan.backward_reads_input(wants)) watch("input", t.input);
  if (plan.norm && wants.input) watch("gamma", t.gamma);
}

// What they ask of their arguments: of all, and of the caller's tensors alone, for owners of codes, scales and memory.
void check_norm_linear_pass(const NormLinearPlan& plan, Backend& backend, const NormLinearForwardTensors& tensors,
                            LinearPass pass, const LinearRun& run);
void check_norm_linear_backward(const NormLinearPlan& plan, Backend& backend, const NormLinearBackwardTensors& tensors,
                                const LinearRun& run);
void check_norm_linear_tensors(const NormLinearPlan& plan, Backend& backend, const NormLinearForwardTensors& tensors,
                               LinearPass pass, const LinearRun& run);
void check_norm_linear_tensors(const NormLinearPlan& plan, Backend& backend, const NormLinearBackwardTensors& tensors,
                               const LinearRun& run);

// ---- an MLP --------------------------------------------------------------------------------------------------------

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

// The same without checks. A backward's two runs differ in their side streams.
void enqueue_mlp_pass(const MlpPlan& plan, Backend& backend, const MlpForwardTensors& tensors, LinearPass pass,
                      const LinearRun& run);
void enqueue_mlp_backward(const MlpPlan& plan, Backend& backend, const MlpBackwardTensors& tensors,
                          const LinearRun& down, const LinearRun& up);
// As multiplies_together() takes them.
LinearGradientDtypes gradient_dtypes_of_down(const MlpPlan& plan, const MlpBackwardTensors& tensors);
LinearGradientDtypes gradient_dtypes_of_up(const MlpPlan& plan, const MlpBackwardTensors& tensors);

// As memory_watch.h says.
void check_held(const AllocationCheck& check, const MlpForwardTensors& tensors);
void check_held(const AllocationCheck& check, const MlpBackwardTensors& tensors);
void watch(Watch& watch, const MlpPlan& plan, const MlpForwardTensors& tensors);
void watch(Watch& watch, const MlpPlan& plan, const MlpBackwardTensors& tensors);

// What they ask of their arguments: of all, and of the caller's tensors alone, for owners of codes, scales and memory.
void check_mlp_pass(const MlpPlan& plan, Backend& backend, const MlpForwardTensors& tensors, LinearPass pass,
                    const LinearRun& run);
void check_mlp_backward(const MlpPlan& plan, Backend& backend, const MlpBackwardTensors& tensors, const LinearRun& run);
void check_mlp_tensors(const MlpPlan& plan, Backend& backend, const MlpForwardTensors& tensors, LinearPass pass,
                       const LinearRun& run);
void check_mlp_tensors(const MlpPlan& plan, Backend& backend, const MlpBackwardTensors& tensors, const LinearRun& run);

}  // namespace ingot
