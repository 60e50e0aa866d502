// A norm and the linear layer after it as functions of tensors, in the way of linear_functions.h: they keep nothing
// between calls, take their memory as those do, and throw what those throw.
//
//   const NormLinearPlan plan = norm_linear_plan({.linear = {.name = "wq", .config = rowwise(), .shape = {K, N}}});
//   const Float8View codes = cast_weight(plan.linear, backend, {.weight = w, .into = weight_region}, {stream});
//   LinearSaved saved{.memory = saved_region};
//   norm_linear_forward(plan, backend, {.input = x, .gamma = g, .beta = b, .output = y, .codes = codes,
//                                       .saved = &saved, .scratch = s}, {stream});
//   norm_linear_backward(plan, backend, {.saved = &saved, .grad_output = gy, .grad_input = gx, .grad_gamma = gg,
//                                        .grad_beta = gb, .grad_weight = gw, .input = x, .gamma = g, .codes = codes,
//                                        .scratch = s}, {stream});
#pragma once

#include <cstdint>

#include "ingot/api.h"
#include "ingot/nn/modules/module_tensors.h"

namespace ingot {

// For other layers after the same norm, such as k and v next to q: the normalised input's codes as a forward of this
// plan writes them, in the way of linear_input_codes(). Those layers' plans are linear_plan()s with given_input and the
// same recipe; their `input` is norm_linear_input_values(), or where that is none any tensor [M, K] of the input's
// dtype, which they do not read. The sum of their gradients of the input goes into grad_values. Not where the recipe
// casts the input again.
INGOT_API Float8View norm_linear_input_codes(const NormLinearPlan& plan, std::int64_t tokens, const MemoryRegion& saved,
                                             const MemoryRegion& scratch, Device device);
// The normalised values [M, K], where a GEMM reads them in high precision; or none, a default tensor.
INGOT_API Tensor norm_linear_input_values(const NormLinearPlan& plan, std::int64_t tokens, const MemoryRegion& saved,
                                          const MemoryRegion& scratch, Device device);

INGOT_API void norm_linear_forward(const NormLinearPlan& plan, Backend& backend,
                                   const NormLinearForwardTensors& tensors, const LinearRun& run);
// Makes what backward needs of a forward that kept nothing, from the same tensors. Where
// plan.linear.recomputes_output() it writes the output again. Scratch: of LinearPass::recompute.
INGOT_API void norm_linear_recompute(const NormLinearPlan& plan, Backend& backend,
                                     const NormLinearForwardTensors& tensors, const LinearRun& run);
// As in linear_functions.h.
INGOT_API bool multiplies_together(const NormLinearPlan& plan, Backend& backend,
                                   const NormLinearBackwardTensors& tensors);
INGOT_API void norm_linear_backward(const NormLinearPlan& plan, Backend& backend,
                                    const NormLinearBackwardTensors& tensors, const LinearRun& run);

}  // namespace ingot
