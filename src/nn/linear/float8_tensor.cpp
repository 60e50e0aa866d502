#include "ingot/nn/linear/float8_tensor.h"

#include <string>

#include "ingot/codegen/types/matmul_size.h"
#include "ingot/runtime/core/check_tensor.h"
#include "ingot/runtime/util/error.h"

namespace ingot {
namespace {

// Refuses outputs that a Float8Tensor cannot hold.
void check_outputs(const CastSpec& spec) {
  const auto refuse = [&](const char* what) {
    throw Error(ErrorCode::invalid_argument, print(spec),
                std::string("cast_to() makes only codes and their dynamic scale_inv; use Backend::cast() for ") + what);
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
  CastTensors tensors{.input = input, .scale_inv = {}};
  const auto codes = [&](OwnedTensor& to, std::int64_t rows, std::int64_t cols) {
    to.resize(backend, spec.out, rows, cols, stream, code_pitch(cols));
    return to.view();
  };
  const auto scale_inv = [&](OwnedTensor& to, ScaleGranularity scale) {
    to.resize(backend, Dtype::f32, 1, scale_count(scale, input.rows, input.cols), stream);
    return to.view();
  };
  if (spec.codes) tensors.codes = codes(*parts.codes, input.rows, input.cols);
  if (spec.transposed) tensors.transposed = codes(*parts.transposed, input.cols, input.rows);
  tensors.scale_inv = scale_inv(*parts.scale_inv, spec.scale);
  if (spec.transposed_scale) {
    tensors.transposed_scale_inv = scale_inv(*parts.transposed_scale_inv, *spec.transposed_scale);
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

void write_scales(const CastSpec& spec, const Tensor& input, const Tensor& scales, Backend& backend, Stream& stream) {
  validate(spec);
  if (spec.source == ScaleSource::given || spec.pointwise) {
    throw Error(ErrorCode::invalid_argument, print(spec),
                "write_scales() makes dynamic scales of the input itself: leave out `given` and the expression");
  }
  const std::int64_t count = scale_count(spec.scale, input.rows, input.cols);
  check_vector("write_scales scales", scales, Dtype::f32, count, backend.device(), "one for each scale of the cast");
  backend.amax({.in = spec.in, .scale = spec.scale}, {.input = input, .amax = scales}, stream);
  backend.amax_scales({.out = spec.out, .pow2 = spec.pow2}, {.amax = scales, .scale = scales}, stream);
}

Tensor scale_inv_by_group(const Tensor& scale_inv, ScaleGranularity scale, std::int64_t rows, std::int64_t cols) {
  if (scale.rows != 1 || scale.cols == 0 || scale_inv.empty()) return scale_inv;
  return matrix(scale_inv.data, Dtype::f32, divided_up(cols, scale.cols), rows, scale_inv.device);
}

Tensor transposed_scale_inv(const Tensor& scale_inv, ScaleGranularity scale, std::int64_t rows, std::int64_t cols) {
  if (scale.rows <= 1 || scale.cols == 0) return scale_inv;
  return matrix(scale_inv.data, Dtype::f32, divided_up(rows, scale.rows), divided_up(cols, scale.cols),
                scale_inv.device);
}

}  // namespace ingot
