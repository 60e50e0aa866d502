// amax_history on the CPU: the step of delayed scaling, slot by slot, as templates/cast/amax_history.cuh.
#include <algorithm>

#include "ingot/runtime/cast/amax_history_operation.h"
#include "ingot/runtime/cpu/thread_pool.h"
#include "ingot/runtime/visit.h"

#include "scaling.cuh"

namespace ingot::cpu {
namespace {

void update(const AmaxHistorySpec& spec, const AmaxHistoryTensors& tensors, i64 slot) {
  float& amax = row<float>(tensors.amax, 0)[slot];
  float* const history = row<float>(tensors.history, slot);
  float* const end = history + tensors.history.cols;
  u32 newest = amax_bits(amax);
  if (spec.finite && newest >= kF32Inf) newest = 0;
  std::copy_backward(history, end - 1, end);
  *history = amax_from_bits(newest);
  amax = 0.0F;
  float& scale = row<float>(tensors.scale, 0)[slot];
  if (tensors.known.data != nullptr && has_scale(row<float>(tensors.known, 0)[slot])) {
    scale = row<float>(tensors.known, 0)[slot];
    return;
  }
  u32 largest = newest;
  if (spec.reduction == AmaxReduction::max) {
    for (const float* at = history; at != end; ++at) largest = std::max(largest, amax_bits(*at));
  }
  if (largest == 0) return;
  scale = scale_from_amax(amax_from_bits(largest), row<float>(tensors.limits, 0)[slot],
                          row<float>(tensors.pow2, 0)[slot] != 0.0F);
}

}  // namespace

void amax_history(const AmaxHistorySpec& spec, const AmaxHistoryTensors& tensors, ThreadPool& pool) {
  const i64 grain = std::max<i64>(1, 65536 / std::max<i64>(1, tensors.history.cols));
  pool.parallel_for(tensors.history.rows, grain, [&](i64 begin, i64 end) {
    for (i64 slot = begin; slot < end; ++slot) update(spec, tensors, slot);
  });
}

}  // namespace ingot::cpu
