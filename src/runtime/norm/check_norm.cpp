// Checks the tensors of norm and norm_backward: shapes, dtypes, overlaps, and which ones the spec asks for.
#include "ingot/runtime/norm/norm_operations.h"

#include <fmt/format.h>

#include <cmath>

#include "ingot/codegen/norm/norm_columns.h"
#include "ingot/runtime/core/check_tensor.h"
#include "ingot/runtime/util/count_of.h"
#include "ingot/runtime/util/error.h"

namespace ingot {
namespace {

constexpr const char* kNotAsked = "the spec does not ask for this output";
constexpr const char* kNotAffine = "the spec is not affine";
constexpr const char* kNoMean = "RMSNorm subtracts no mean";
constexpr const char* kNoBeta = "RMSNorm has no beta";
constexpr const char* kPerRow = "one for each row of the input";
constexpr const char* kPerColumn = "one for each column of the input";
constexpr const char* kWhole = "one for the whole tensor";

// Tensors of one operation on `input`.
struct Checker {
  const Tensor& input;
  Device device;

  Range matrix(const char* what, const Tensor& tensor, Dtype dtype) const {
    return check_matrix(what, tensor, dtype, input.rows, input.cols, device, "the input's shape");
  }
  Range matrix_if(bool asked, const char* what, const Tensor& tensor, Dtype dtype) const {
    return asked ? matrix(what, tensor, dtype) : check_absent(what, tensor, kNotAsked);
  }
  Range vector_if(bool asked, const char* what, const Tensor& tensor, Dtype dtype, std::int64_t n, const char* because,
                  const char* why_not) const {
    return asked ? check_vector(what, tensor, dtype, n, device, because) : check_absent(what, tensor, why_not);
  }
};

}  // namespace

void check(const NormSpec& spec, const NormTensors& tensors, Device device) {
  validate_spec(spec);
  if (!(tensors.eps >= 0.0F && std::isfinite(tensors.eps))) {
    throw Error(ErrorCode::invalid_argument, "norm eps",
                fmt::format("is {}, but must be finite and at least 0", tensors.eps));
  }
  const Tensor& input = tensors.input;
  if (spec.cols != 0 && norm_kernel_cols(spec, input.cols) != spec.cols) {
    const bool full = names_norm_rows_full(spec.cols);
    const std::int64_t least = full ? spec.cols : spec.cols - NormRowsWideLaunch::kColsPerStep + 1;
    throw Error(ErrorCode::invalid_argument, "norm input",
                fmt::format("has {}, but the spec says cols={}, a kernel for {}{}", count_of(input.cols, "column"),
                            spec.cols, least, full ? "" : fmt::format(" to {}", spec.cols)));
  }
  const Checker check{input, device};
  const Dtype out = spec.out.value_or(Dtype::e4m3fn);
  const bool layer = spec.kind == NormKind::layer;
  const bool given = spec.source == ScaleSource::given;
  const char* const why_no_scale = spec.out ? "the scales of this spec are dynamic" : "the spec asks for no codes";
  const Range inputs[] = {
      check_matrix("norm input", input, spec.in, device),
      check.vector_if(spec.affine, "norm gamma", tensors.gamma, spec.in, input.cols, kPerColumn, kNotAffine),
      check.vector_if(spec.affine && layer, "norm beta", tensors.beta, spec.in, input.cols, kPerColumn,
                      layer ? kNotAffine : kNoBeta),
      check.vector_if(given, "norm scale", tensors.scale, Dtype::f32, 1, kWhole, why_no_scale)};
  const Range outputs[] = {
      check.matrix_if(spec.out.has_value(), "norm codes", tensors.codes, out),
      check.vector_if(spec.out.has_value(), "norm scale_inv", tensors.scale_inv, Dtype::f32, given ? 1 : input.rows,
                      given ? kWhole : kPerRow, "the spec asks for no codes"),
      check.vector_if(given, "norm amax", tensors.amax, Dtype::f32, 1, kWhole, why_no_scale),
      check.matrix_if(spec.result, "norm result", tensors.result, spec.in),
      check.vector_if(spec.stats && layer, "norm mean", tensors.mean, Dtype::f32, input.rows, kPerRow,
                      layer ? kNotAsked : kNoMean),
      check.vector_if(spec.stats, "norm rstd", tensors.rstd, Dtype::f32, input.rows, kPerRow, kNotAsked)};
  check_overlaps(inputs, outputs);
}

void check(const NormBackwardSpec& spec, const NormBackwardTensors& tensors, Device device) {
  validate_spec(spec);
  const Tensor& input = tensors.input;
  const Checker check{input, device};
  const bool layer = spec.kind == NormKind::layer;
  const Range inputs[] = {
      check_matrix("norm_backward input", input, spec.in, device),
      check.matrix("norm_backward grad_output", tensors.grad_output, spec.in),
      check.vector_if(spec.affine, "norm_backward gamma", tensors.gamma, spec.in, input.cols, kPerColumn, kNotAffine),
      check.vector_if(layer, "norm_backward mean", tensors.mean, Dtype::f32, input.rows, kPerRow, kNoMean),
      check.vector_if(true, "norm_backward rstd", tensors.rstd, Dtype::f32, input.rows, kPerRow, "")};
  const Range outputs[] = {check.matrix("norm_backward grad_input", tensors.grad_input, spec.in),
                           check.vector_if(spec.affine, "norm_backward grad_gamma", tensors.grad_gamma, spec.sums,
                                           input.cols, kPerColumn, kNotAffine),
                           check.vector_if(spec.affine && layer, "norm_backward grad_beta", tensors.grad_beta,
                                           spec.sums, input.cols, kPerColumn, layer ? kNotAffine : kNoBeta)};
  check_overlaps(inputs, outputs);
}

NormSpec named_norm(const NormSpec& spec, std::int64_t cols) {
  NormSpec named = spec;
  if (spec.cols == 0) named.cols = norm_kernel_cols(spec, cols);
  return named;
}

}  // namespace ingot
