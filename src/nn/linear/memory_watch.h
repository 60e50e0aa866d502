// What layers look for where ContextOptions::check_memory asks for it, which a host cannot see otherwise: memory that
// was freed, and memory that changed between a forward and its backward though the backward reads it again. Each look
// copies that memory to the host and waits for the stream.
#pragma once

#include "ingot/nn/linear/linear_functions.h"
#include "ingot/nn/modules/mlp_functions.h"
#include "ingot/nn/modules/norm_linear_functions.h"

namespace ingot {

// Before a call enqueues anything, behind the checks of its arguments. `subject`: the layer, in messages.
void look_at_forward(const std::string& subject, Backend& backend, const LinearForwardTensors& tensors, Stream& stream);
void look_at_forward(const std::string& subject, Backend& backend, const NormLinearForwardTensors& tensors,
                     Stream& stream);
void look_at_forward(const std::string& subject, Backend& backend, const MlpForwardTensors& tensors, Stream& stream);
void look_at_backward(const std::string& subject, const LinearPlan& plan, Backend& backend,
                      const LinearBackwardTensors& tensors, Stream& stream);
void look_at_backward(const std::string& subject, const NormLinearPlan& plan, Backend& backend,
                      const NormLinearBackwardTensors& tensors, Stream& stream);
void look_at_backward(const std::string& subject, const MlpPlan& plan, Backend& backend,
                      const MlpBackwardTensors& tensors, Stream& stream);

// Behind a forward or a recompute that keeps anything: notes what backward reads again in tensors.saved->sums.
void remember_forward(const LinearPlan& plan, Backend& backend, const LinearForwardTensors& tensors, Stream& stream);
void remember_forward(const NormLinearPlan& plan, Backend& backend, const NormLinearForwardTensors& tensors,
                      Stream& stream);
void remember_forward(const MlpPlan& plan, Backend& backend, const MlpForwardTensors& tensors, Stream& stream);

// enqueue() between the two looks of a forward; without checks, enqueue() alone.
template <class Plan, class Tensors, class Enqueue>
void watched_forward(const std::string& subject, const Plan& plan, Backend& backend, const Tensors& tensors,
                     Stream& stream, const Enqueue& enqueue) {
  if (!backend.checks_memory()) return enqueue();
  look_at_forward(subject, backend, tensors, stream);
  enqueue();
  if (tensors.saved != nullptr) remember_forward(plan, backend, tensors, stream);
}

}  // namespace ingot
