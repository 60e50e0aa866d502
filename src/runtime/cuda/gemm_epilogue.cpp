#include "ingot/runtime/cuda/gemm_epilogue.h"

#include <cstddef>

namespace ingot::cuda {

static_assert(kMaxInputs == kMaxPointwiseInputs);

EpilogueParams epilogue_params(const GemmTensors& tensors) {
  EpilogueParams params{.c = tensors.c.data,
                        .c_stride = tensors.c.row_stride,
                        .operands = {},
                        .preactivation = tensors.preactivation.data,
                        .preactivation_stride = tensors.preactivation.row_stride,
                        .amax = static_cast<u32*>(tensors.amax.data),
                        .scale = static_cast<const float*>(tensors.scale.data),
                        .factor = static_cast<float*>(tensors.factor.data),
                        .beta = tensors.beta};
  for (std::size_t i = 0; i < kMaxPointwiseInputs; ++i) {
    params.operands[i] = {.data = tensors.inputs[i].data, .stride = tensors.inputs[i].row_stride};
  }
  return params;
}

}  // namespace ingot::cuda
