#include "ingot/runtime/cuda/operations.h"

#include "amax.cuh"

namespace ingot::cuda {

void amax(const AmaxSpec& spec, const AmaxTensors& tensors, Stream& stream, Launcher& launcher) {
  const Tensor& input = tensors.input;
  auto* const result = static_cast<float*>(tensors.amax.data);
  const i64 count = scale_count(spec.scale, input.rows, input.cols);
  if (count == 0) return;
  if (input.empty()) return launcher.fill(result, 0.0F, count, stream);

  const i64 bytes = size_of(spec.in);
  const AmaxParams whole{input.data, input.rows, input.cols, input.row_stride, result};
  if (spec.scale == kRowwise) {
    launcher.launch(spec, Pass::main, RowsLaunch::grid(input.rows, input.cols, bytes),
                    RowsLaunch::threads(input.cols, bytes), whole, stream);
    return;
  }
  AmaxParams first = flattened(whole);
  const i64 partials = AmaxPartialsLaunch::grid(first.rows, first.cols, bytes);
  first.amax = static_cast<float*>(stream.scratch(static_cast<std::size_t>(partials) * sizeof(float)));
  launcher.launch(spec, Pass::first, partials, AmaxPartialsLaunch::kThreads, first, stream);
  const AmaxParams second{first.amax, 1, partials, partials, result};
  launcher.launch(spec, Pass::main, RowsLaunch::grid(1, partials, sizeof(float)),
                  RowsLaunch::threads(partials, sizeof(float)), second, stream);
}

}  // namespace ingot::cuda
