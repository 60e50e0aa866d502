// amax, amax_scales and amax_history on a GPU.
#include "ingot/runtime/cast/cast_operations.h"
#include "ingot/runtime/cast/cuda_cast.h"
#include "ingot/runtime/core/stream.h"
#include "ingot/runtime/jit/launcher.h"

#include "cast/amax.cuh"
#include "cast/amax_history.cuh"
#include "cast/amax_scales.cuh"

namespace ingot::cuda {

void amax(const AmaxSpec& spec, const AmaxTensors& tensors, Stream& stream, Launcher& launcher) {
  const Tensor& input = tensors.input;
  auto* const result = static_cast<float*>(tensors.amax.data);
  const i64 count = scale_count(spec.scale, input.rows, input.cols);
  if (count == 0) return;
  if (input.empty()) return launcher.fill(result, 0.0F, count, stream);

  const SourceParams source{
      .input = input.data, .rows = input.rows, .cols = input.cols, .input_stride = input.row_stride, .operands = {}};
  if (spec.scale == kRowwise) {
    launcher.launch(spec, Pass::main, RowsLaunch::grid(input.rows, input.cols), RowsLaunch::threads(input.cols),
                    AmaxRowsParams{source, result, RowsLaunch::threads_log2(input.cols)}, stream);
    return;
  }
  if (spec.scale == kColumnwise) {
    launcher.fill_zero(result, static_cast<std::size_t>(count) * sizeof(float), stream);
    const AmaxTilesParams params{
        .source = source, .tensor = nullptr, .rows = nullptr, .columns = static_cast<u32*>(tensors.amax.data)};
    launch_amax_tiles(spec, Pass::main, params, stream, launcher);
    return;
  }
  const SourceParams first = flattened(source);
  constexpr u32 kThreads = AmaxPartialsLaunch::kMaxThreads;
  const i64 partials = AmaxPartialsLaunch::grid(first.rows, first.cols, kThreads, static_cast<u64>(size_of(spec.in)));
  auto* const memory = static_cast<float*>(stream.scratch(static_cast<std::size_t>(partials) * sizeof(float)));
  launcher.launch(spec, Pass::first, partials, kThreads, AmaxPartialsParams{first, memory}, stream);
  const SourceParams second{.input = memory, .rows = 1, .cols = partials, .input_stride = partials, .operands = {}};
  launcher.launch(spec, Pass::main, RowsLaunch::grid(1, partials), RowsLaunch::threads(partials),
                  AmaxRowsParams{second, result, RowsLaunch::threads_log2(partials)}, stream);
}

void amax_scales(const AmaxScalesSpec& spec, const AmaxScalesTensors& tensors, const Stream& stream,
                 Launcher& launcher) {
  const i64 count = tensors.amax.cols;
  if (count == 0) return;
  const float limit = fp8_max(spec.out);
  const AmaxScalesParams params{.amax = static_cast<const float*>(tensors.amax.data),
                                .scale = static_cast<float*>(tensors.scale.data),
                                .count = count,
                                .fp8_max = limit,
                                .largest_scale = scale_from_amax(0.0F, limit, false),
                                .pow2 = spec.pow2};
  launcher.launch(spec, Pass::main, AmaxScalesLaunch::grid(count), AmaxScalesLaunch::kThreads, params, stream);
}

void amax_history(const AmaxHistorySpec& spec, const AmaxHistoryTensors& tensors, const Stream& stream,
                  Launcher& launcher) {
  const i64 slots = tensors.history.rows;
  if (slots == 0) return;
  const AmaxHistoryParams params{.amax = static_cast<float*>(tensors.amax.data),
                                 .history = static_cast<float*>(tensors.history.data),
                                 .slots = slots,
                                 .length = tensors.history.cols,
                                 .history_stride = tensors.history.row_stride,
                                 .scale = static_cast<float*>(tensors.scale.data),
                                 .limits = static_cast<const float*>(tensors.limits.data),
                                 .pow2 = static_cast<const float*>(tensors.pow2.data),
                                 .known = static_cast<const float*>(tensors.known.data),
                                 .most_recent = spec.reduction == AmaxReduction::most_recent,
                                 .finite = spec.finite};
  launcher.launch(spec, Pass::main, AmaxHistoryLaunch::grid(slots), AmaxHistoryLaunch::kThreads, params, stream);
}

}  // namespace ingot::cuda
