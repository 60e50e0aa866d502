#include "ingot/runtime/check.h"

#include <fmt/format.h>

#include <string>

#include "ingot/runtime/check_tensor.h"

namespace ingot {
namespace {

const char* count_reason(ScaleGranularity granularity, const char* rowwise) {
  return granularity == kTensorwise ? "one for the whole tensor" : rowwise;
}

const char* extent_reason(ScaleGranularity granularity) {
  if (granularity == kTensorwise) return "one for the whole tensor";
  if (granularity == kRowwise) return "one for each row of the input";
  if (granularity == kColumnwise) return "one for each column of the input";
  if (granularity == kRowGroups) return "one for each group of 128 in a row of the input, row by row";
  if (granularity == kColumnGroups) return "one for each group of 128 in a column of the input, 128 rows by 128 rows";
  return "one for each block of 128 x 128 of the input, row by row";
}

std::int64_t extent_mn(const Tensor& operand, Layout layout) {
  return layout == Layout::k_major ? operand.rows : operand.cols;
}

std::int64_t extent_k(const Tensor& operand, Layout layout) {
  return layout == Layout::k_major ? operand.cols : operand.rows;
}

Range check_factors(const char* what, const Tensor& factors, Dtype operand, ScaleGranularity scale, std::int64_t rows,
                    std::int64_t cols, Device device, const char* rowwise) {
  if (!is_fp8(operand)) return check_absent(what, factors, "a high-precision operand has no factors");
  return check_vector(what, factors, Dtype::f32, scale_count(scale, rows, cols), device, count_reason(scale, rowwise));
}

}  // namespace

void check_memory(const char* what, const Tensor& tensor, Device device) {
  check_matrix(what, tensor, tensor.dtype, device);
}

void check(const AmaxSpec& spec, const AmaxTensors& tensors, Device device) {
  validate(spec);
  const Tensor& input = tensors.input;
  const Range in = check_matrix("amax input", input, spec.in, device);
  const Range out = check_vector("amax amax", tensors.amax, Dtype::f32, scale_count(spec.scale, input.rows, input.cols),
                                 device, extent_reason(spec.scale));
  check_overlaps({&in, 1}, {&out, 1});
}

void check(const CastSpec& spec, const CastTensors& tensors, Device device) {
  validate(spec);
  const Tensor& input = tensors.input;
  const auto check_codes = [&](const char* what, const Tensor& codes, bool asked, std::int64_t rows, std::int64_t cols,
                               const char* because) {
    if (!asked) return check_absent(what, codes, "the spec does not ask for this output");
    const Range range = check_matrix(what, codes, spec.out, device);
    check_shape(what, codes, rows, cols, because);
    return range;
  };
  // A dense array with one element for each extent of `scale`, if `asked` for.
  const auto check_extents = [&](const char* what, const Tensor& values, bool asked, ScaleGranularity scale,
                                 const char* why_not) {
    if (!asked) return check_absent(what, values, why_not);
    return check_vector(what, values, Dtype::f32, scale_count(scale, input.rows, input.cols), device,
                        extent_reason(scale));
  };
  const bool given = spec.source == ScaleSource::given;
  const bool own = spec.transposed_scale.has_value();
  const ScaleGranularity own_scale = spec.transposed_scale.value_or(spec.scale);
  constexpr const char* kDynamic = "the scales of this spec are dynamic";
  constexpr const char* kShared = "the transposed codes of this spec have the scales of the codes";
  const char* const why_not_own = given ? kShared : kDynamic;

  const Range inputs[] = {
      check_matrix("cast input", input, spec.in, device),
      check_extents("cast scales", tensors.scales, given, spec.scale, kDynamic),
      check_extents("cast transposed_scales", tensors.transposed_scales, given && own, own_scale, why_not_own)};
  const Range outputs[] = {
      check_codes("cast codes", tensors.codes, spec.codes, input.rows, input.cols, "the input's shape"),
      check_codes("cast transposed", tensors.transposed, spec.transposed, input.cols, input.rows,
                  "the input's shape, transposed"),
      check_extents("cast factors", tensors.factors, true, spec.scale, ""),
      check_extents("cast transposed_factors", tensors.transposed_factors, own, own_scale, kShared),
      check_extents("cast amax", tensors.amax, given, spec.scale, kDynamic),
      check_extents("cast transposed_amax", tensors.transposed_amax, given && own, own_scale, why_not_own)};
  check_overlaps(inputs, outputs);
}

void check(const GemmSpec& spec, const GemmTensors& tensors, Device device) {
  validate(spec);
  const Range a = check_matrix("gemm a", tensors.a, spec.a, device);
  const Range b = check_matrix("gemm b", tensors.b, spec.b, device);
  const auto [m, n, k] = gemm_shape(spec, tensors);
  if (extent_k(tensors.b, spec.layout_b) != k) {
    refuse("gemm b", tensors.b,
           fmt::format("its K is {} ({}), but that of a, which is {}, is {} ({})", extent_k(tensors.b, spec.layout_b),
                       spec.layout_b == Layout::k_major ? "b is [N, K]" : "b is [K, N]", describe(tensors.a), k,
                       spec.layout_a == Layout::k_major ? "a is [M, K]" : "a is [K, M]"));
  }
  const Range inputs[] = {
      a, b,
      check_factors("gemm factor_a", tensors.factor_a, spec.a, spec.scale_a, m, k, device,
                    "one for each of a's M rows"),
      check_factors("gemm factor_b", tensors.factor_b, spec.b, spec.scale_b, n, k, device,
                    "one for each of b's N rows"),
      spec.bias ? check_vector("gemm bias", tensors.bias, bias_dtype(spec), n, device, "one for each of the N columns")
                : check_absent("gemm bias", tensors.bias, "the spec has no bias")};
  const Range out = check_matrix("gemm out", tensors.out, spec.out, device);
  check_shape("gemm out", tensors.out, m, n, "M of a, N of b");
  check_overlaps(inputs, {&out, 1});
}

void check(const ColumnSumSpec& spec, const ColumnSumTensors& tensors, Device device) {
  validate(spec);
  const Range in = check_matrix("column_sum input", tensors.input, spec.in, device);
  const Range out = check_vector("column_sum sum", tensors.sum, spec.out, tensors.input.cols, device,
                                 "one for each column of the input");
  check_overlaps({&in, 1}, {&out, 1});
}

GemmShape gemm_shape(const GemmSpec& spec, const GemmTensors& tensors) {
  return {.m = extent_mn(tensors.a, spec.layout_a),
          .n = extent_mn(tensors.b, spec.layout_b),
          .k = extent_k(tensors.a, spec.layout_a)};
}

}  // namespace ingot
