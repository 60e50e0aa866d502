// The steps of a grouped linear layer's calls, without checks: for grouped_linear.h, and for modules of several layers
// that have checked all of them before they run any.
#pragma once

#include <optional>

#include "ingot/nn/linear/grouped_linear.h"

namespace ingot {

void enqueue_grouped_forward(const GroupedLinearPlan& plan, Backend& backend,
                             const GroupedLinearForwardTensors& tensors, const LinearRun& run);

// The gradient of a layer's output, cast for `wants`.
struct GroupedGradOutput {
  Tensor values;                    // [tokens, N], or what `index` takes its rows from
  std::optional<RowIndex> index{};  // as GroupedLinearBackwardTensors::grad_output_index
  LinearGradients wants{};
  Float8View codes{};  // where they go
};
void cast_grouped_grad_output(const GroupedLinearPlan& plan, Backend& backend, const GroupedGradOutput& grad_output,
                              const LinearRun& run);

// weight_memory: of plan.weight_again_memory(), where the weights are cast again.
void multiply_grouped_grad_input(const GroupedLinearPlan& plan, Backend& backend,
                                 const GroupedLinearBackwardTensors& tensors, const Float8View& grad_output,
                                 const MemoryRegion& weight_memory, const LinearRun& run);
void multiply_grouped_grad_weight(const GroupedLinearPlan& plan, Backend& backend,
                                  const GroupedLinearBackwardTensors& tensors, const Float8View& grad_output,
                                  const LinearRun& run);

}  // namespace ingot
