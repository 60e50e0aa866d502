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
  if (!spec.pointwise.inputs().empty()) refuse("an expression with further inputs");
  if (spec.result) refuse("the result");
  if (spec.sum) refuse("the sum");
}

}  // namespace

void cast_to(const Float8Parts& parts, const CastSpec& spec, const Tensor& input, Backend& backend, Stream& stream) {
  check_outputs(spec);
  CastTensors tensors{.input = input, .factors = {}};
  if (spec.codes) {
    parts.codes->resize(backend, spec.out, input.rows, input.cols, stream);
    tensors.codes = parts.codes->view();
  }
  if (spec.transposed) {
    parts.transposed->resize(backend, spec.out, input.cols, input.rows, stream);
    tensors.transposed = parts.transposed->view();
  }
  const auto factors = [&](OwnedTensor& to, ScaleGranularity scale) {
    to.resize(backend, Dtype::f32, 1, scale_count(scale, input.rows, input.cols), stream);
    return to.view();
  };
  tensors.factors = factors(*parts.factors, spec.scale);
  if (spec.transposed_scale) {
    tensors.transposed_factors = factors(*parts.transposed_factors, *spec.transposed_scale);
  }
  backend.cast(spec, tensors, stream);
}

void cast_to(Float8Tensor& out, const CastSpec& spec, const Tensor& input, Backend& backend, Stream& stream) {
  cast_to({&out.codes, &out.transposed, &out.factors, &out.transposed_factors}, spec, input, backend, stream);
}

}  // namespace ingot
