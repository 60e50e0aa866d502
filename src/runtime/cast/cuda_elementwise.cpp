// elementwise on a GPU: one launch, after a fill where it finds an amax.
#include <type_traits>

#include "ingot/runtime/cast/cast_operations.h"
#include "ingot/runtime/cast/cuda_cast.h"
#include "ingot/runtime/core/stream.h"
#include "ingot/runtime/jit/launcher.h"

#include "cast/elementwise.cuh"
#include "cast/elementwise_amax.cuh"
#include "cast/elementwise_pair.cuh"
#include "cast/elementwise_rows.cuh"

namespace ingot::cuda {

LaunchShape shape_of(const Vec8Tiles::Grid& grid) {
  return {
      .grid_x = Launcher::checked_grid(grid.x), .grid_y = Launcher::checked_grid(grid.y), .block = Vec8Tiles::kThreads};
}

namespace {

// With the sums of the rows.
template <class Params>
void launch_rows(const ElementwiseSpec& spec, const Params& values, const ElementwiseTensors& tensors,
                 const Stream& stream, Launcher& launcher) {
  const Tensor& input = tensors.input;
  const LaunchShape shape{.grid_x = Launcher::checked_grid(ElementwiseRowsLaunch::grid(input.rows, input.cols)),
                          .block = ElementwiseRowsLaunch::kThreads};
  const ElementwiseRowsParams<Params> params{.values = values,
                                             .sums = static_cast<float*>(tensors.sums.data),
                                             .threads_log2 = ElementwiseRowsLaunch::threads_log2(input.cols)};
  launcher.launch(spec, Pass::main, shape, params, stream);
}

}  // namespace

void elementwise(const ElementwiseSpec& spec, const ElementwiseTensors& tensors, const Stream& stream,
                 Launcher& launcher) {
  const Tensor& input = tensors.input;
  if (spec.amax) {
    // Nothing is enqueued if the kernel cannot be loaded.
    if (!input.empty()) launcher.kernel(spec, Pass::main, stream);
    launcher.fill_zero(tensors.amax.data, sizeof(float), stream);
  }
  if (input.empty()) {
    // Rows without columns.
    const auto sums = static_cast<std::size_t>(spec.row_sum ? input.rows : 0) * sizeof(float);
    if (sums != 0) launcher.fill_zero(tensors.sums.data, sums, stream);
    return;
  }
  const ElementwiseParams params{.source = source_of(input, tensors.inputs),
                                 .output = tensors.output.data,
                                 .output_stride = tensors.output.row_stride,
                                 .across_log2 = ElementwiseLaunch::across_log2(input.cols)};
  const LaunchShape shape =
      shape_of(ElementwiseLaunch::grid(input.rows, input.cols, static_cast<u64>(size_of(spec.in))));
  const auto launch = [&](const auto& values) {
    if (spec.row_sum) return launch_rows(spec, values, tensors, stream, launcher);
    if (!spec.amax) return launcher.launch(spec, Pass::main, shape, values, stream);
    const ElementwiseAmaxParams<std::remove_cvref_t<decltype(values)>> with_amax{
        .values = values, .amax = static_cast<u32*>(tensors.amax.data)};
    launcher.launch(spec, Pass::main, shape, with_amax, stream);
  };
  if (!spec.second) return launch(params);
  launch(ElementwisePairParams{
      .first = params, .second = tensors.second.data, .second_stride = tensors.second.row_stride});
}

}  // namespace ingot::cuda
