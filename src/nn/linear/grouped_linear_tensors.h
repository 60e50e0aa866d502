// What the functions of a linear layer of many experts (grouped_linear.h) take.
#pragma once

#include <optional>

#include "ingot/nn/linear/grouped_linear_plan.h"
#include "ingot/nn/linear/linear_tensors.h"

namespace ingot {

struct ExpertWeightTensors {
  Tensor weight;  // [experts * N, K], one expert's after another's
  MemoryRegion into{};
  Tensor amax{};        // f32[plan.weight_amax_count()], which is written; missing: backward looks for the maxima
  LinearScale scale{};  // f32[experts] each, if plan.is_delayed()
};

// T: the rows of all experts.
struct GroupedLinearForwardTensors {
  Tensor input;  // [T, K], or [S, K] with a row_index
  // If given: row r of the experts is row row_index[r] of the input, T = row_index->rows. Scales of the whole input and
  // of its features are those of all S rows, taken or not. Not with a prologue.
  std::optional<RowIndex> row_index{};
  PointwiseTensors prologue_inputs{};  // as LinearForwardTensors has them
  ExpertEnds ends{};                   // of rows; without a capacity
  Tensor bias{};                       // [experts, N] of plan.bias_dtype(), dense: if plan.bias
  Tensor output;                       // [T, N]; rows that no expert has are not written
  Float8View codes{};
  LinearScales scales{};         // if plan.is_delayed(): the input's, f32[experts] each
  LinearSaved* saved = nullptr;  // null: keeps nothing
  MemoryRegion scratch{};        // plan.forward_scratch(), unless the stream's allocator gives it
};

struct GroupedLinearBackwardTensors {
  const LinearSaved* saved = nullptr;
  ExpertEnds ends{};                            // forward's
  Tensor grad_output;                           // [T, N], or [S, N] with a grad_output_index
  std::optional<RowIndex> grad_output_index{};  // likewise, of T rows
  Tensor grad_input{};  // [T, K], of a prologue's value; rows that no expert has are not written
  // [experts * N, K], all of which is written: zeros for experts without rows.
  Tensor grad_weight{};
  // [experts, N], dense, in a dtype of its own: the sums of each expert's rows of grad_output, 0 of none, in an order
  // that makes bits repeat (templates/cast/column_sum_experts.cuh).
  Tensor grad_bias{};
  bool accumulate = false;  // adds to grad_weight, which is f32 then, within the GEMM
  LinearScales scales{};    // if plan.is_delayed(): grad_output's, and those of a weight that is cast here
  Tensor weight{};          // if plan.weight_again.any and grad_input is given
  Tensor weight_amax{};     // then, as cast_expert_weights() wrote it of this weight; the same results without it
  // Otherwise, for grad_input. If plan.weight_again.any they may be given in place of the weight: `codes` [experts * N,
  // K], by rows, with the `scale_inv` of that cast, which the call transposes where it would cast.
  Float8View codes{};
  MemoryRegion scratch{};  // grouped_linear_backward_scratch()
};

}  // namespace ingot
