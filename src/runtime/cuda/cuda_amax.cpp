#include "ingot/runtime/cuda/keep_end.h"
#include "ingot/runtime/cuda/operations.h"

#include "amax.cuh"

namespace ingot::cuda {

void amax(const AmaxSpec& spec, const AmaxTensors& tensors, Stream& stream, Launcher& launcher) {
  const Tensor& input = tensors.input;
  auto* const result = static_cast<float*>(tensors.amax.data);
  const i64 count = scale_count(spec.scale, input.rows, input.cols);
  if (count == 0) return;
  if (input.empty()) return launcher.fill(result, 0.0F, count, stream);

  const KeepFrom keep = keep_end(input.rows * input.cols, size_of(spec.in), launcher);
  const SourceParams source{
      .input = input.data, .rows = input.rows, .cols = input.cols, .input_stride = input.row_stride, .operands = {}};
  if (spec.scale == kRowwise) {
    launcher.launch(spec, Pass::main, RowsLaunch::grid(input.rows, input.cols), RowsLaunch::threads(input.cols),
                    AmaxRowsParams{source, result, keep}, stream);
    return;
  }
  if (spec.scale == kColumnwise) {
    launcher.fill_zero(result, static_cast<std::size_t>(count) * sizeof(float), stream);
    const u32 steps = AmaxTilesLaunch::steps(input.rows, input.cols);
    const AmaxTilesParams params{.source = source,
                                 .tensor = nullptr,
                                 .rows = nullptr,
                                 .columns = static_cast<u32*>(tensors.amax.data),
                                 .steps = steps,
                                 .keep = keep};
    launcher.launch(spec, Pass::main, AmaxTilesLaunch::grid(input.rows, input.cols, steps), AmaxTilesLaunch::kThreads,
                    params, stream);
    return;
  }
  AmaxPartialsParams first =
      flattened(AmaxPartialsParams{input.data, input.rows, input.cols, input.row_stride, nullptr, keep});
  const i64 partials = AmaxPartialsLaunch::grid(first.rows, first.cols, size_of(spec.in));
  first.amax = static_cast<float*>(stream.scratch(static_cast<std::size_t>(partials) * sizeof(float)));
  launcher.launch(spec, Pass::first, partials, AmaxPartialsLaunch::kThreads, first, stream);
  const SourceParams second{.input = first.amax, .rows = 1, .cols = partials, .input_stride = partials, .operands = {}};
  launcher.launch(spec, Pass::main, RowsLaunch::grid(1, partials), RowsLaunch::threads(partials),
                  AmaxRowsParams{second, result, {0}}, stream);
}

}  // namespace ingot::cuda
