// What a module of several parts enqueues for a linear layer inside it.
#pragma once

#include "ingot/nn/linear/linear_parts.h"

namespace ingot {

// `owner`: gives the layer's scales and codes; null: the tensors have them.
void enqueue_forward_part(const LinearPlan& plan, Backend& backend, LinearForwardTensors& tensors, LinearPass pass,
                          const LinearRun& run, LinearPart* owner);
void enqueue_backward_part(const LinearPlan& plan, Backend& backend, LinearBackwardTensors& tensors,
                           const LinearRun& run, LinearPart* owner);
// Before memory is used again that such a backward has used, perhaps on the side stream.
void finish_backward_part(const LinearRun& run, const LinearGradients& wants, LinearPart* owner);

}  // namespace ingot
