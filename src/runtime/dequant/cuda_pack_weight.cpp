// pack_weight on a GPU: one launch, to pack or to unpack.
#include "ingot/runtime/dequant/dequant_operations.h"
#include "ingot/runtime/jit/launcher.h"
#include "ingot/runtime/stream.h"

#include "dequant/pack_weight.cuh"

namespace ingot::cuda {

void pack_weight(const PackWeightSpec& spec, const PackWeightTensors& tensors, Stream& stream, Launcher& launcher) {
  const Tensor& codes = tensors.codes;
  const PackWeightParams params{.codes = static_cast<u8*>(codes.data),
                                .n = codes.rows,
                                .k = codes.cols,
                                .row_bytes = codes.row_stride * bits_of(spec.weight) / 8,
                                .packed = static_cast<u8*>(tensors.packed.data)};
  if (params.n == 0) return;
  if (!spec.unpack) {
    launcher.launch(spec, Pass::main, PackWeightLaunch::grid(params.n), PackWeightLaunch::kThreads, params, stream);
  } else if (params.k != 0) {
    launcher.launch(spec, Pass::main, UnpackWeightLaunch::grid(params.n, params.k), UnpackWeightLaunch::kThreads,
                    params, stream);
  }
}

}  // namespace ingot::cuda
