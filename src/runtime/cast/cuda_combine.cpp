// combine on a GPU: one launch.
#include "ingot/runtime/cast/cast_operations.h"
#include "ingot/runtime/core/stream.h"
#include "ingot/runtime/jit/launcher.h"

#include "cast/combine.cuh"

namespace ingot::cuda {

void combine(const CombineSpec& spec, const CombineTensors& tensors, const Stream& stream, Launcher& launcher) {
  const Tensor& input = tensors.input;
  const Tensor& output = tensors.output;
  if (output.empty()) return;
  const CombineParams params{.input = input.data,
                             .rows = input.rows,
                             .cols = input.cols,
                             .input_stride = input.row_stride,
                             .index = tensors.index.data,
                             .choices = static_cast<u32>(tensors.index.rows / output.rows),
                             .output = output.data,
                             .output_stride = output.row_stride,
                             .segments = static_cast<u32>(CombineLaunch::segments(input.cols))};
  const LaunchShape shape{.grid_x = Launcher::checked_grid(CombineLaunch::grid(output.rows, input.cols)),
                          .block = CombineLaunch::threads(input.cols)};
  launcher.launch(spec, Pass::main, shape, params, stream);
}

}  // namespace ingot::cuda
