// What the functions of linear_functions.h ask of their arguments before anything is enqueued. Float8Linear, whose
// memory is its own, asks it of the tensors only.
#pragma once

#include <cstddef>

#include "ingot/nn/linear/linear_tensors.h"
#include "ingot/nn/linear/tensor_checks.h"

namespace ingot {

// The gradients that a LinearBackward or LinearBackwardTensors gives tensors for.
template <class Tensors>
LinearGradients wanted_gradients(const Tensors& tensors) {
  return {.input = is_given(tensors.grad_input),
          .weight = is_given(tensors.grad_weight),
          .bias = is_given(tensors.grad_bias)};
}

// What multiplies_together() asks for.
template <class Tensors>
LinearGradientDtypes gradient_dtypes(const Tensors& tensors) {
  LinearGradientDtypes dtypes;
  if (is_given(tensors.grad_input)) dtypes.input = tensors.grad_input.dtype;
  if (!is_given(tensors.grad_weight)) return dtypes;
  dtypes.weight = tensors.grad_weight.dtype;
  dtypes.accumulate = tensors.accumulate;
  return dtypes;
}

// Streams, and the tensors of the caller that are given or must be. weight_is_given: also checks a weight that this
// forward does not read.
void check_forward_tensors(const LinearPlan& plan, const Backend& backend, const LinearForwardTensors& tensors,
                           const Stream& stream, bool weight_is_given);
// Also asks for saved memory of a forward of this plan.
// For modules of several parts, whose scratch has no room to write a grad_output of one element out.
void refuse_one_element(const LinearPlan& plan, const LinearBackwardTensors& tensors);
void check_backward_tensors(const LinearPlan& plan, const Backend& backend, const LinearBackwardTensors& tensors,
                            const Stream& stream);

// All arguments: those, and codes, scales and memory.
void check_linear_forward(const LinearPlan& plan, const Backend& backend, const LinearForwardTensors& tensors,
                          const LinearRun& run);
void check_linear_recompute(const LinearPlan& plan, const Backend& backend, const LinearForwardTensors& tensors,
                            const LinearRun& run);
void check_linear_backward(const LinearPlan& plan, const Backend& backend, const LinearBackwardTensors& tensors,
                           const LinearRun& run);
void check_weight_cast(const LinearPlan& plan, const Backend& backend, const WeightCastTensors& tensors,
                       const LinearRun& run);
// The tensor alone, where the plan casts it.
void check_weight(const LinearPlan& plan, const Backend& backend, const Tensor& weight, const Stream& stream);
// The weight's codes for the output GEMM, and their factors.
void check_weight_codes(const LinearPlan& plan, const Backend& backend, const Float8View& codes);
// Memory of at least that size, aligned.
void check_region(const LinearPlan& plan, const char* what, const MemoryRegion& region, std::size_t bytes);

}  // namespace ingot
