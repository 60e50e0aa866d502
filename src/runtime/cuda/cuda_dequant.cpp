#include "ingot/runtime/cuda/operations.h"
#include "ingot/runtime/error.h"

namespace ingot::cuda {

void dequant_matmul(const DequantMatmulSpec& spec, const DequantMatmulTensors& /*tensors*/, Stream& /*stream*/,
                    Launcher& /*launcher*/) {
  throw Error(ErrorCode::invalid_spec, print(spec), "there is no kernel of this spec");
}

}  // namespace ingot::cuda
