// One training step of a linear layer by the functions of linear_functions.h, in memory that was made before: what
// Float8Linear does by owning it. For comparing what both cost the host.
#pragma once

#include "ingot/nn/linear/linear_functions.h"
#include "ingot/nn/modules/delayed_scaling.h"
#include "ingot/nn/recipe/recipes.h"
#include "ingot/runtime/core/buffer.h"

namespace ingot::bench {

// The step's tensors: input [M, K], weight [N, K] and grad_output [M, N], and the results.
struct FunctionsStepTensors {
  Tensor input, weight, grad_output;
  Tensor output, grad_input, grad_weight;
};

// Must stay where it is.
class FunctionsStep {
 public:
  FunctionsStep(const Recipe& recipe, const FunctionsStepTensors& tensors, Backend& backend, Stream& stream);
  FunctionsStep(const FunctionsStep&) = delete;
  FunctionsStep& operator=(const FunctionsStep&) = delete;

  // Casts the weight, runs forward and backward, and with delayed scales updates the histories.
  void enqueue();

 private:
  Backend* backend_;
  Stream* stream_;
  LinearPlan plan_;
  DelayedScaling delayed_;
  Buffer weight_, saved_memory_, scratch_, constants_;
  LinearSaved saved_;
  LinearForwardTensors forward_;
  LinearBackwardTensors backward_;
};

}  // namespace ingot::bench
