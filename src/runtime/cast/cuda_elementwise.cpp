// elementwise on a GPU: one launch.
#include "ingot/runtime/cast/cuda_cast.h"
#include "ingot/runtime/cast/elementwise_operation.h"
#include "ingot/runtime/jit/launcher.h"
#include "ingot/runtime/stream.h"

#include "cast/elementwise.cuh"

namespace ingot::cuda {

void elementwise(const ElementwiseSpec& spec, const ElementwiseTensors& tensors, const Stream& stream,
                 Launcher& launcher) {
  const Tensor& input = tensors.input;
  if (input.empty()) return;
  const ElementwiseParams params{.source = source_of(input, tensors.inputs),
                                 .output = tensors.output.data,
                                 .output_stride = tensors.output.row_stride,
                                 .across_log2 = ElementwiseLaunch::across_log2(input.cols)};
  launcher.launch(spec, Pass::main, ElementwiseLaunch::grid(input.rows, input.cols, static_cast<u64>(size_of(spec.in))),
                  ElementwiseLaunch::kThreads, params, stream);
}

}  // namespace ingot::cuda
