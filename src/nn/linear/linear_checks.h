// Checks the arguments of the functions of linear_functions.h before anything is enqueued. Float8Linear owns its
// memory, so it checks only the tensors.
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

// The argument of multiplies_together().
template <class Tensors>
LinearGradientDtypes gradient_dtypes(const Tensors& tensors) {
  LinearGradientDtypes dtypes;
  if (is_given(tensors.grad_input)) dtypes.input = tensors.grad_input.dtype;
  if constexpr (requires { tensors.grad_input_of_others; }) {
    dtypes.adds_to_input = is_given(tensors.grad_input_of_others);
  }
  if (!is_given(tensors.grad_weight)) return dtypes;
  dtypes.weight = tensors.grad_weight.dtype;
  dtypes.accumulate = tensors.accumulate;
  return dtypes;
}

// Checks streams, and the caller's tensors, those that are given and those that must be. weight_is_given: also checks a
// weight that this forward does not read.
void check_forward_tensors(const LinearPlan& plan, const DeviceApi& device_api, const LinearForwardTensors& tensors,
                           const Stream& stream, bool weight_is_given);
// For modules of several parts, whose scratch has no room to expand a grad_output of one element.
void refuse_one_element(const LinearPlan& plan, const LinearBackwardTensors& tensors);
// Also requires saved memory of a forward of this plan.
void check_backward_tensors(const LinearPlan& plan, const DeviceApi& device_api, const LinearBackwardTensors& tensors,
                            const Stream& stream);

// Check all arguments: the above, and codes, scales and memory.
void check_linear_forward(const LinearPlan& plan, const DeviceApi& device_api, const LinearForwardTensors& tensors,
                          const LinearRun& run);
void check_linear_recompute(const LinearPlan& plan, const DeviceApi& device_api, const LinearForwardTensors& tensors,
                            const LinearRun& run);
void check_linear_backward(const LinearPlan& plan, const DeviceApi& device_api, const LinearBackwardTensors& tensors,
                           const LinearRun& run);
void check_weight_cast(const LinearPlan& plan, const DeviceApi& device_api, const WeightCastTensors& tensors,
                       const LinearRun& run);
// The tensor alone, where the plan casts it.
void check_weight(const LinearPlan& plan, const DeviceApi& device_api, const Tensor& weight, const Stream& stream);
// The weight's codes for the output GEMM, and their scale_inv.
void check_weight_codes(const LinearPlan& plan, const DeviceApi& device_api, const Float8View& codes);
// Memory of at least that size, aligned.
void check_region(const LinearPlan& plan, const char* what, const MemoryRegion& region, std::size_t bytes);

}  // namespace ingot
