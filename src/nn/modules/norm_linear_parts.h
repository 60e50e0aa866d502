// The calls that a norm and the linear layer behind it consist of, with their tensors: what norm_linear_functions.cpp
// enqueues and norm_linear_checks.cpp asks for.
#pragma once

#include "ingot/nn/linear/linear_parts.h"
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

inline bool observes_values(const LinearRun& run) { return run.observer != nullptr && run.observer->wants_values(); }

// The same without checks, for modules that have checked all their parts before they run any. `owner`: gives the
// layer's scales and codes; null: the tensors have them.
void enqueue_norm_linear_pass(const NormLinearPlan& plan, Backend& backend, const NormLinearForwardTensors& tensors,
                              LinearPass pass, const LinearRun& run, LinearPart* owner = nullptr);
void enqueue_norm_linear_backward(const NormLinearPlan& plan, Backend& backend,
                                  const NormLinearBackwardTensors& tensors, const LinearRun& run,
                                  LinearPart* owner = nullptr);

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

// What they ask of their arguments. `owner`: asks only for the caller's tensors, as NormLinear does, whose codes,
// scales and memory are its own.
void check_norm_linear_pass(const NormLinearPlan& plan, Backend& backend, const NormLinearForwardTensors& tensors,
                            LinearPass pass, const LinearRun& run, bool owner);
void check_norm_linear_backward(const NormLinearPlan& plan, Backend& backend, const NormLinearBackwardTensors& tensors,
                                const LinearRun& run, bool owner);

}  // namespace ingot
