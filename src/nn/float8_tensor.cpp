#include "ingot/nn/float8_tensor.h"

namespace ingot {

void cast_to(OwnedTensor& codes, OwnedTensor& transposed, OwnedTensor& factors, const CastSpec& spec,
             const Tensor& input, Backend& backend, Stream& stream) {
  CastTensors tensors{.input = input, .factors = {}};
  if (spec.codes) {
    codes.resize(backend, spec.out, input.rows, input.cols, stream);
    tensors.codes = codes.view();
  }
  if (spec.transposed) {
    transposed.resize(backend, spec.out, input.cols, input.rows, stream);
    tensors.transposed = transposed.view();
  }
  factors.resize(backend, Dtype::f32, 1, scale_count(spec.scale, input.rows, input.cols), stream);
  tensors.factors = factors.view();
  backend.cast(spec, tensors, stream);
}

void cast_to(Float8Tensor& out, const CastSpec& spec, const Tensor& input, Backend& backend, Stream& stream) {
  cast_to(out.codes, out.transposed, out.factors, spec, input, backend, stream);
}

}  // namespace ingot
