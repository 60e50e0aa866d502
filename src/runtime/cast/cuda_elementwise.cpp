// elementwise on a GPU: one launch.
#include "ingot/runtime/cast/cast_operations.h"
#include "ingot/runtime/cast/cuda_cast.h"
#include "ingot/runtime/core/stream.h"
#include "ingot/runtime/jit/launcher.h"

#include "cast/elementwise.cuh"
#include "cast/elementwise_pair.cuh"

namespace ingot::cuda {

LaunchShape shape_of(const Vec8Tiles::Grid& grid) {
  return {
      .grid_x = Launcher::checked_grid(grid.x), .grid_y = Launcher::checked_grid(grid.y), .block = Vec8Tiles::kThreads};
}

void elementwise(const ElementwiseSpec& spec, const ElementwiseTensors& tensors, const Stream& stream,
                 Launcher& launcher) {
  const Tensor& input = tensors.input;
  if (input.empty()) return;
  const ElementwiseParams params{.source = source_of(input, tensors.inputs),
                                 .output = tensors.output.data,
                                 .output_stride = tensors.output.row_stride,
                                 .across_log2 = ElementwiseLaunch::across_log2(input.cols)};
  const LaunchShape shape =
      shape_of(ElementwiseLaunch::grid(input.rows, input.cols, static_cast<u64>(size_of(spec.in))));
  if (!spec.second) return launcher.launch(spec, Pass::main, shape, params, stream);
  const ElementwisePairParams pair{
      .first = params, .second = tensors.second.data, .second_stride = tensors.second.row_stride};
  launcher.launch(spec, Pass::main, shape, pair, stream);
}

}  // namespace ingot::cuda
