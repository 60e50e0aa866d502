// The linear layers of a mixture of experts as functions of tensors: forward and backward of many layers of one shape,
// each of which has the rows of some tokens. Like linear_functions.h, they keep nothing between calls.
//
//   const GroupedLinearPlan plan = grouped_linear_plan({.config = rowwise(), .experts = E, .shape = {K, N}});
//   const Float8View codes = cast_expert_weights(plan, backend, {.weight = w, .into = weight_region}, {stream});
//   LinearSaved saved{.memory = saved_region};
//   const GroupedLinearForwardTensors forward{.input = x, .ends = ends, .output = y, .codes = codes, .saved = &saved};
//   grouped_linear_forward(plan, backend, forward, {stream});
//   GroupedLinearBackwardTensors backward{.saved = &saved, .ends = ends, .grad_output = gy, .codes = codes};
//   backward.grad_input = gx;
//   backward.grad_weight = gw;
//   grouped_linear_backward(plan, backend, backward, {stream});
//
// Rows of input and output are those of expert 0, then of expert 1, and so on; ends says on the device where each
// expert's end (gemm_tensors.h). Nothing is padded, experts may have no rows, and the host never waits. Rows that no
// expert has are neither multiplied nor written, but a cast reads them: they must be finite.
//
// The rows of input and grad_output may be those of tokens, in the tokens' order, with an index that says which of them
// each expert's rows are: no copy of them is written. Observers see no values of such casts.
//
// Observers are told of all casts, of no GEMM. The weights' are of the whole stack: values and codes [experts * N, K],
// or with a scale of each expert [experts, N * K], rowwise; transposed codes [experts * K, N] come without values, and
// so do codes of rows with delayed scales.
//
// The scales of input and grad_output are those of a layer that has all rows: along the rows, where the gradients of
// weights sum, experts share a scale for each feature. But those of groups of 128 rows are an expert's own, as its
// first group begins with its first row, and so are delayed ones: of its rows. The weights' scales are each expert's
// own.
//
// Delayed scales are the caller's, as in linear_functions.h: f32[experts] each with the maxima of the rows that each
// expert had, which DelayedScaling keeps for so many slots (add_experts()). An expert without rows raises no maximum.
#pragma once

#include <cstddef>
#include <optional>

#include "ingot/api.h"
#include "ingot/nn/linear/grouped_linear_tensors.h"
#include "ingot/nn/linear/linear_functions.h"

namespace ingot {

INGOT_API Float8View cast_expert_weights(const GroupedLinearPlan& plan, Backend& backend,
                                         const ExpertWeightTensors& tensors, const LinearRun& run);

// Where it writes: its codes as views of `region`.
INGOT_API Float8View expert_weight_codes(const GroupedLinearPlan& plan, const MemoryRegion& region, Device device);

// The scratch of this call, up to plan.backward_scratch(): less where the codes of plan.weight_again have room in
// grad_weight, which is written after they are read: it is contiguous and nothing is added to it.
INGOT_API std::size_t grouped_linear_backward_scratch(const GroupedLinearPlan& plan,
                                                      const GroupedLinearBackwardTensors& tensors);

// Errors: Error{invalid_argument} that names the layer and the tensor, before anything is enqueued; then those of the
// backend. Saved memory and scratch that overlap each other, the codes or prologue inputs are not found. On a GPU other
// than Hopper, and for features that are no multiples of 16, the GEMMs' error says so.
INGOT_API void grouped_linear_forward(const GroupedLinearPlan& plan, Backend& backend,
                                      const GroupedLinearForwardTensors& tensors, const LinearRun& run);
INGOT_API void grouped_linear_backward(const GroupedLinearPlan& plan, Backend& backend,
                                       const GroupedLinearBackwardTensors& tensors, const LinearRun& run);

// The steps of the same without checks, for modules that have checked all their layers before they run any.
INGOT_API void enqueue_grouped_forward(const GroupedLinearPlan& plan, Backend& backend,
                                       const GroupedLinearForwardTensors& tensors, const LinearRun& run);

// The gradient of a layer's output, cast for `wants`.
struct GroupedGradOutput {
  Tensor values;                    // [tokens, N], or what `index` takes its rows from
  std::optional<RowIndex> index{};  // as GroupedLinearBackwardTensors::grad_output_index
  LinearGradients wants{};
  ExpertEnds ends{};   // of its rows
  Float8View codes{};  // where they go, in the order in which a cast writes them
  // The largest |value| of each row, f32[tokens], and of each column, f32[N], where they are known already
  // (takes_known_maxima()). The results have the same bits.
  Tensor row_amax{}, column_amax{};
  LinearScale scale{};  // if plan.is_delayed()
};
// sum: [experts, N], as GroupedLinearBackwardTensors::grad_bias.
INGOT_API void sum_grouped_grad_bias(Backend& backend, const GroupedGradOutput& grad_output, const Tensor& sum,
                                     Stream& stream);
// Does that cast look for the largest |value| of rows and of columns?
INGOT_API bool takes_known_maxima(const GroupedLinearPlan& plan, const LinearGradients& wants);
INGOT_API void cast_grouped_grad_output(const GroupedLinearPlan& plan, Backend& backend,
                                        const GroupedGradOutput& grad_output, const LinearRun& run);

// weight_memory: of plan.weight_again_memory(), where the weights are cast again.
INGOT_API void multiply_grouped_grad_input(const GroupedLinearPlan& plan, Backend& backend,
                                           const GroupedLinearBackwardTensors& tensors, const Float8View& grad_output,
                                           const MemoryRegion& weight_memory, const LinearRun& run);
INGOT_API void multiply_grouped_grad_weight(const GroupedLinearPlan& plan, Backend& backend,
                                            const GroupedLinearBackwardTensors& tensors, const Float8View& grad_output,
                                            const LinearRun& run);

}  // namespace ingot
