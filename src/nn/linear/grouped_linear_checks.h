// Checks the arguments of the functions of grouped_linear.h before anything is enqueued, and says what they ask for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "ingot/nn/linear/grouped_linear_tensors.h"
#include "ingot/nn/linear/tensor_checks.h"

namespace ingot {

// The gradients that a GEMM computes.
inline LinearGradients wanted_of_grouped(const GroupedLinearBackwardTensors& t) {
  return {.input = is_given(t.grad_input), .weight = is_given(t.grad_weight), .bias = false};
}

// T, of a matrix that may have an index.
inline std::int64_t rows_of(const Tensor& matrix, const std::optional<RowIndex>& index) {
  return index ? index->rows : matrix.rows;
}

// grad_weight, if the codes of the weights that backward makes have room in it.
MemoryRegion lent_by_grad_weight(const GroupedLinearPlan& plan, const GroupedLinearBackwardTensors& t);
// grouped_linear_backward_scratch()
std::size_t grouped_backward_scratch(const GroupedLinearPlan& plan, const GroupedLinearBackwardTensors& t);

void check_expert_weights(const GroupedLinearPlan& plan, Backend& backend, const ExpertWeightTensors& tensors,
                          const LinearRun& run);
void check_grouped_forward(const GroupedLinearPlan& plan, Backend& backend, const GroupedLinearForwardTensors& tensors,
                           const LinearRun& run);
void check_grouped_backward(const GroupedLinearPlan& plan, Backend& backend,
                            const GroupedLinearBackwardTensors& tensors, const LinearRun& run);

}  // namespace ingot
