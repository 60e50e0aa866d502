// elementwise on a GPU: one launch, after a fill where it finds an amax or maxima; more where the maxima of wide rows
// do not fit a block.
#include <array>
#include <cstddef>
#include <type_traits>

#include "ingot/runtime/cast/cast_operations.h"
#include "ingot/runtime/cast/cuda_cast.h"
#include "ingot/runtime/core/stream.h"
#include "ingot/runtime/jit/launcher.h"

#include "cast/elementwise.cuh"
#include "cast/elementwise_amax.cuh"
#include "cast/elementwise_maxima.cuh"
#include "cast/elementwise_pair.cuh"
#include "cast/elementwise_rows.cuh"

namespace ingot::cuda {

LaunchShape shape_of(const Vec8Tiles::Grid& grid) {
  return {
      .grid_x = Launcher::checked_grid(grid.x), .grid_y = Launcher::checked_grid(grid.y), .block = Vec8Tiles::kThreads};
}

namespace {

void clear_floats(const Tensor& vector, const Stream& stream, Launcher& launcher) {
  if (vector.empty()) return;
  launcher.fill_zero(vector.data, static_cast<std::size_t>(vector.cols) * sizeof(float), stream);
}

// The shared memory of a block that finds the maxima of rows and columns.
i64 maxima_shared_bytes(const ElementwiseSpec& spec, i64 cols) {
  return ElementwiseMaximaLaunch::shared_bytes(cols, static_cast<u64>(size_of(spec.in)), spec.second ? 2 : 1);
}

template <class Params>
ElementwiseRowsParams<Params> rows_params(const Params& values, const ElementwiseTensors& tensors) {
  return {.values = values,
          .sums = static_cast<float*>(tensors.sums.data),
          .threads_log2 = ElementwiseRowsLaunch::threads_log2(tensors.input.cols)};
}

// With the sums of the rows.
template <class Params>
void launch_rows(const ElementwiseSpec& spec, const Params& values, const ElementwiseTensors& tensors,
                 const Stream& stream, Launcher& launcher) {
  const Tensor& input = tensors.input;
  const LaunchShape shape{.grid_x = Launcher::checked_grid(ElementwiseRowsLaunch::grid(input.rows, input.cols)),
                          .block = ElementwiseRowsLaunch::kThreads};
  launcher.launch(spec, Pass::main, shape, rows_params(values, tensors), stream);
}

// With the maxima of rows and columns, and the sums of the rows if the spec has a row_sum.
template <class Params>
void launch_maxima(const ElementwiseSpec& spec, const Params& values, const ElementwiseTensors& tensors,
                   const Stream& stream, Launcher& launcher) {
  using Launch = ElementwiseMaximaLaunch;
  const Tensor& input = tensors.input;
  const Kernel& kernel = launcher.kernel(spec, Pass::main, stream);
  const auto shared = static_cast<u32>(maxima_shared_bytes(spec, input.cols));
  const i64 rows_per_block =
      Launch::rows_per_block(input.rows, input.cols, blocks_at_once(kernel, Launch::kThreads, launcher, shared));
  clear_floats(tensors.column_amax, stream, launcher);
  launcher.launch(kernel, spec, Pass::main,
                  {.grid_x = Launcher::checked_grid(Launch::grid(input.rows, rows_per_block)),
                   .block = Launch::kThreads,
                   .shared_bytes = shared},
                  ElementwiseMaximaParams<Params>{.rows = rows_params(values, tensors),
                                                  .row_amax = static_cast<float*>(tensors.row_amax.data),
                                                  .column_amax = static_cast<u32*>(tensors.column_amax.data),
                                                  .rows_per_block = rows_per_block},
                  stream);
}

// The same in several launches, for rows whose maxima do not fit a block: the outputs without them, then those of each
// output by the pass that casts of it have.
void elementwise_then_maxima(ElementwiseSpec spec, const ElementwiseTensors& tensors, const Stream& stream,
                             Launcher& launcher) {
  const CastSpec search{
      .in = spec.in, .scale = kRowwise, .codes = true, .transposed = true, .transposed_scale = kColumnwise};
  launcher.kernel(search, Pass::first, stream);
  spec.maxima = false;
  elementwise(spec, tensors, stream, launcher);
  clear_floats(tensors.row_amax, stream, launcher);
  clear_floats(tensors.column_amax, stream, launcher);
  auto* column_amax = static_cast<u32*>(tensors.column_amax.data);
  for (const Tensor& output : {tensors.output, tensors.second}) {
    if (output.data == nullptr) continue;
    const AmaxTilesParams params{.source = source_of(output, std::array<Tensor, kMaxPointwiseInputs>{}),
                                 .tensor = nullptr,
                                 .rows = static_cast<u32*>(tensors.row_amax.data),
                                 .columns = column_amax};
    launch_amax_tiles(search, Pass::first, params, stream, launcher);
    column_amax += output.cols;
  }
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
  if (input.empty()) {  // sums and maxima of nothing
    for (const Tensor& vector : {tensors.sums, tensors.row_amax, tensors.column_amax})
      clear_floats(vector, stream, launcher);
    return;
  }
  const i64 room =
      min_of(ElementwiseMaximaLaunch::kMostShared, i64{dynamic_shared_room(launcher.block_shared_bytes(), 1)});
  if (spec.maxima && maxima_shared_bytes(spec, input.cols) > room) {
    return elementwise_then_maxima(spec, tensors, stream, launcher);
  }
  const ElementwiseParams params{.source = source_of(input, tensors.inputs),
                                 .output = tensors.output.data,
                                 .output_stride = tensors.output.row_stride,
                                 .across_log2 = ElementwiseLaunch::across_log2(input.cols)};
  const LaunchShape shape =
      shape_of(ElementwiseLaunch::grid(input.rows, input.cols, static_cast<u64>(size_of(spec.in))));
  const auto launch = [&](const auto& values) {
    if (spec.maxima) return launch_maxima(spec, values, tensors, stream, launcher);
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
