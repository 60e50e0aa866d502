// amax_history on a GPU: one launch for all slots.
#include "ingot/runtime/cast/amax_history_operation.h"
#include "ingot/runtime/jit/launcher.h"
#include "ingot/runtime/stream.h"

#include "cast/amax_history.cuh"

namespace ingot::cuda {

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
