// The calls that a norm and the linear layer behind it consist of, with their tensors: what norm_linear_functions.cpp
// enqueues and norm_linear_checks.cpp asks for.
#pragma once

#include "ingot/nn/linear/linear_step.h"
#include "ingot/nn/linear/memory_watch.h"
#include "ingot/nn/modules/norm_linear_functions.h"

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
// Behind a norm the linear layer's gradient of its input has the norm's dtype.
LinearGradientDtypes gradient_dtypes(const NormLinearPlan& plan, const NormLinearBackwardTensors& tensors);

// Adds the gradients by other layers to `sum`, this layer's; and what is asked of them.
void add_grad_values(const NormLinearPlan& plan, Backend& backend, const NormLinearBackwardTensors& tensors,
                     const Tensor& sum, Stream& stream);
void check_grad_values(const NormLinearPlan& plan, const Backend& backend, const NormLinearBackwardTensors& tensors);

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

}  // namespace ingot
