// One dequant_matmul: the kernels of its plan are tried in turn, and the first that takes the tensors is launched. A
// spec that names its kernel has no other.
#include <fmt/format.h>

#include "ingot/runtime/cuda/dequant_plans.h"
#include "ingot/runtime/cuda/dequant_rules.h"
#include "ingot/runtime/cuda/operations.h"
#include "ingot/runtime/dequant_shape.h"
#include "ingot/runtime/error.h"

namespace ingot::cuda {
namespace {

// Of a spec that names its kernel and tiling. Null where it has been enqueued, else why it does not take the call.
const char* try_kernel(const DequantMatmulSpec& spec, const DequantMatmulTensors& tensors, const DequantShape& shape,
                       Stream& stream, Launcher& launcher) {
  if (spec.kernel == DequantKernel::sm90) {
    const char* const reason = dequant_sm90_refusal(spec, tensors, launcher.target());
    if (reason == nullptr) dequant_sm90(spec, tensors, stream, launcher);
    return reason;
  }
  const char* const reason = dequant_mma_refusal(spec, shape, launcher.target());
  if (reason == nullptr) dequant_mma(spec, tensors, stream, launcher);
  return reason;
}

}  // namespace

void dequant_matmul(const DequantMatmulSpec& spec, const DequantMatmulTensors& tensors, Stream& stream,
                    Launcher& launcher, DequantPlans& plans) {
  const DequantShape shape = dequant_shape(tensors);
  if (shape.m == 0 || shape.n == 0) return;
  const char* reason = "no kernel has such a spec on this GPU";
  for (const DequantMatmulSpec& named : plans.find(spec, {.m = shape.m, .n = shape.n, .k = shape.k})) {
    reason = try_kernel(named, tensors, shape, stream, launcher);
    if (reason == nullptr) return;
  }
  throw Error(ErrorCode::invalid_argument, print(spec),
              fmt::format("{}; leave kernel out to have the library choose one", reason));
}

}  // namespace ingot::cuda
