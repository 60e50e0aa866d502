#include "ingot/nn/linear/linear_part_calls.h"

namespace ingot {

void enqueue_forward_part(const LinearPlan& plan, Backend& backend, LinearForwardTensors& tensors, LinearPass pass,
                          const LinearRun& run, LinearPart* owner) {
  // A recompute that multiplies again is a whole forward, with all its scales.
  if (plan.recomputes_output() && pass == LinearPass::recompute) pass = LinearPass::training;
  const ObservedRange range(run.observer, plan.name, pass == LinearPass::recompute ? "recompute" : "forward");
  if (owner != nullptr) owner->before_forward(pass, tensors, run.stream);
  if (pass == LinearPass::recompute) {
    enqueue_linear_recompute(plan, backend, tensors, run);
  } else {
    enqueue_linear_forward(plan, backend, tensors, run);
  }
  if (owner != nullptr) owner->after_forward(tensors, run.stream);
}

void enqueue_backward_part(const LinearPlan& plan, Backend& backend, LinearBackwardTensors& tensors,
                           const LinearRun& run, LinearPart* owner) {
  const ObservedRange range(run.observer, plan.name, "backward");
  Stream* const side = owner != nullptr ? owner->before_backward(tensors, run.stream) : run.side;
  enqueue_linear_backward(plan, backend, tensors, {.stream = run.stream, .side = side, .observer = run.observer});
}

void finish_backward_part(const LinearRun& run, const LinearGradients& wants, LinearPart* owner) {
  if (owner != nullptr) return owner->after_backward(run.stream);
  // One that it has not used may be outside of a capture.
  if (Stream* const side = run.side_for(wants)) run.stream.wait_for(*side);
}

}  // namespace ingot
