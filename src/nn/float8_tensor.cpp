#include "ingot/nn/float8_tensor.h"

#include <string>

#include "ingot/runtime/error.h"

namespace ingot {
namespace {

// A Float8Tensor has no place for these.
void check_outputs(const CastSpec& spec) {
  const auto refuse = [&](const char* what) {
    throw Error(ErrorCode::invalid_argument, print(spec),
                std::string("cast_to() makes codes and their dynamic factors alone; use Backend::cast() for ") + what);
  };
  if (spec.source == ScaleSource::given) refuse("given scales");
  if (spec.transposed_scale) refuse("transposed codes with scales of their own");
  if (!spec.pointwise.inputs().empty()) refuse("an expression with further inputs");
  if (spec.result) refuse("the result");
  if (spec.sum) refuse("the sum");
}

}  // namespace

void cast_to(OwnedTensor& codes, OwnedTensor& transposed, OwnedTensor& factors, const CastSpec& spec,
             const Tensor& input, Backend& backend, Stream& stream) {
  check_outputs(spec);
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
