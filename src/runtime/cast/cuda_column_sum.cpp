// column_sum on a GPU.
#include "ingot/runtime/cast/cast_operations.h"
#include "ingot/runtime/core/stream.h"
#include "ingot/runtime/jit/launcher.h"

#include "ingot/runtime/cast/cuda_cast.h"

#include "cast/column_sum.cuh"
#include "cast/column_sum_experts.cuh"

namespace ingot::cuda {
namespace {

void column_sum_experts(const ColumnSumSpec& spec, const ColumnSumTensors& tensors, Stream& stream,
                        Launcher& launcher) {
  const Tensor& input = tensors.input;
  const i64 cols = input.cols;
  const i64 experts = tensors.ends.experts;
  const i64 rows = tensors.row_index ? tensors.row_index->rows : input.rows;
  const i64 slots = ExpertSlots::count(rows, experts);
  auto* const partials = static_cast<float*>(stream.scratch(static_cast<std::size_t>(slots * cols) * sizeof(float)));
  const ColumnSumExpertsParams first{.input = input.data,
                                     .cols = cols,
                                     .input_stride = input.row_stride,
                                     .index = tensors.row_index ? tensors.row_index->data : nullptr,
                                     .last_row = input.rows - 1,
                                     .experts = expert_rows_params(tensors.ends, rows),
                                     .partials = partials};
  if (rows != 0) {
    launcher.launch(spec, Pass::first, ColumnSumExpertsLaunch::grid(rows, cols, experts, size_of(spec.in)),
                    ColumnSumExpertsLaunch::kThreads, first, stream);
  }
  const ColumnSumExpertsFinishParams finish{
      .partials = partials, .cols = cols, .experts = first.experts, .sum = tensors.sum.data};
  launcher.launch(spec, Pass::main, ColumnSumExpertsLaunch::finish_grid(cols, experts),
                  ColumnSumExpertsLaunch::kFinishThreads, finish, stream);
}

}  // namespace

void column_sum(const ColumnSumSpec& spec, const ColumnSumTensors& tensors, Stream& stream, Launcher& launcher) {
  const Tensor& input = tensors.input;
  const i64 cols = input.cols;
  if (cols == 0) return;
  if (spec.experts) return column_sum_experts(spec, tensors, stream, launcher);
  if (input.rows == 0) {
    return launcher.fill_zero(tensors.sum.data, static_cast<std::size_t>(cols * size_of(spec.out)), stream);
  }
  const i64 chunks = chunk_count(input.rows);
  auto* const partials = static_cast<float*>(stream.scratch(static_cast<std::size_t>(chunks * cols) * sizeof(float)));
  const ColumnSumParams first{
      .input = input.data, .rows = input.rows, .cols = cols, .input_stride = input.row_stride, .partials = partials};
  launcher.launch(spec, Pass::first, ColumnSumPartialsLaunch::grid(input.rows, cols, size_of(spec.in)),
                  ColumnSumPartialsLaunch::kThreads, first, stream);
  const ColumnSumFinishParams finish{.partials = partials,
                                     .chunks = chunks,
                                     .cols = cols,
                                     .sum = tensors.sum.data,
                                     .sum_cols = cols,
                                     .other_sum = nullptr};
  launcher.launch(spec, Pass::main, ColumnSumFinishLaunch::grid(cols), ColumnSumFinishLaunch::kThreads, finish, stream);
}

}  // namespace ingot::cuda
