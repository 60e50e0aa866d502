#include "ingot/nn/float8_tensor.h"

#include <string>

#include "ingot/codegen/types/divided_up.h"
#include "ingot/runtime/error.h"

namespace ingot {
namespace {

// Refuses outputs that a Float8Tensor cannot hold.
void check_outputs(const CastSpec& spec) {
  const auto refuse = [&](const char* what) {
    throw Error(ErrorCode::invalid_argument, print(spec),
                std::string("cast_to() makes only codes and their dynamic factors; use Backend::cast() for ") + what);
  };
  if (spec.source == ScaleSource::given) refuse("given scales");
  if (!spec.pointwise.inputs().empty()) refuse("an expression with further inputs");
  if (spec.result) refuse("the result");
  if (spec.sum) refuse("the sum");
}

}  // namespace

std::int64_t code_pitch(std::int64_t cols) {
  const std::int64_t unit = cols < 64 ? 1 : cols < 512 ? 16 : 64;
  return divided_up(cols, unit) * unit;
}

CastTensors outputs_of(const Float8Parts& parts, const CastSpec& spec, const Tensor& input, Backend& backend,
                       Stream& stream) {
  static_cast<void>(byte_span(input, "input"));  // refuses sizes that the outputs' could not follow
  CastTensors tensors{.input = input, .factors = {}};
  const auto codes = [&](OwnedTensor& to, std::int64_t rows, std::int64_t cols) {
    to.resize(backend, spec.out, rows, cols, stream, code_pitch(cols));
    return to.view();
  };
  const auto factors = [&](OwnedTensor& to, ScaleGranularity scale) {
    to.resize(backend, Dtype::f32, 1, scale_count(scale, input.rows, input.cols), stream);
    return to.view();
  };
  if (spec.codes) tensors.codes = codes(*parts.codes, input.rows, input.cols);
  if (spec.transposed) tensors.transposed = codes(*parts.transposed, input.cols, input.rows);
  tensors.factors = factors(*parts.factors, spec.scale);
  if (spec.transposed_scale) {
    tensors.transposed_factors = factors(*parts.transposed_factors, *spec.transposed_scale);
  }
  return tensors;
}

void cast_to(const Float8Parts& parts, const CastSpec& spec, const Tensor& input, Backend& backend, Stream& stream) {
  check_outputs(spec);
  backend.cast(spec, outputs_of(parts, spec, input, backend, stream), stream);
}

void cast_to(Float8Tensor& out, const CastSpec& spec, const Tensor& input, Backend& backend, Stream& stream) {
  cast_to(parts_of(out), spec, input, backend, stream);
}

Tensor transposed_factors(const Tensor& factors, ScaleGranularity scale, std::int64_t rows, std::int64_t cols) {
  if (scale.rows <= 1 || scale.cols == 0) return factors;
  return matrix(factors.data, Dtype::f32, divided_up(rows, scale.rows), divided_up(cols, scale.cols), factors.device);
}

}  // namespace ingot
