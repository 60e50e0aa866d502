// dequant_matmul on a GPU: tries the kernels of the call's plan in order, and launches the first that supports the
// tensors. A spec that names its kernel has only that one.
#include "ingot/codegen/dequant/dequant_sm90.h"
#include "ingot/runtime/dequant/dequant_operations.h"
#include "ingot/runtime/dequant/dequant_plans.h"
#include "ingot/runtime/dequant/dequant_rules.h"
#include "ingot/runtime/dequant/dequant_shape.h"
#include "ingot/runtime/jit/launcher.h"
#include "ingot/runtime/stream.h"

namespace ingot::cuda {
namespace {

// Requires a spec that names its kernel and tiling. Null if the call was enqueued, else why the kernel does not support
// it.
const char* try_kernel(const DequantMatmulSpec& spec, const DequantMatmulTensors& tensors, const MatmulSize& size,
                       Stream& stream, Launcher& launcher) {
  if (spec.kernel == DequantKernel::sm90) {
    const char* reason = dequant_sm90_refusal(spec, tensors, launcher.target());
    if (reason == nullptr && !launcher.has_room(dequant_cluster(dequant_sm90_tiling(*spec.tiling)), stream)) {
      reason = "the stream's part of the GPU has no room for the tiling's clusters";
    }
    if (reason == nullptr) dequant_sm90(spec, tensors, stream, launcher);
    return reason;
  }
  const char* const reason = dequant_mma_refusal(spec, size, launcher.target());
  if (reason == nullptr) dequant_mma(spec, tensors, stream, launcher);
  return reason;
}

}  // namespace

void dequant_matmul(const DequantMatmulSpec& spec, const DequantMatmulTensors& tensors, Stream& stream,
                    Launcher& launcher, DequantPlans& plans) {
  const MatmulSize size = dequant_size(tensors);
  if (size.m == 0 || size.n == 0) return;
  run_first(spec, plans.find(spec, size),
            [&](const DequantMatmulSpec& named) { return try_kernel(named, tensors, size, stream, launcher); });
}

}  // namespace ingot::cuda
