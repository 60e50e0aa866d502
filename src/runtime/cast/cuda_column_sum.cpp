// column_sum on a GPU.
#include "ingot/runtime/cast/cast_operations.h"
#include "ingot/runtime/core/stream.h"
#include "ingot/runtime/jit/launcher.h"

#include "cast/column_sum.cuh"

namespace ingot::cuda {

void column_sum(const ColumnSumSpec& spec, const ColumnSumTensors& tensors, Stream& stream, Launcher& launcher) {
  const Tensor& input = tensors.input;
  const i64 cols = input.cols;
  if (cols == 0) return;
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
