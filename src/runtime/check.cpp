#include "ingot/runtime/check.h"

#include <fmt/format.h>

#include <array>
#include <span>
#include <string>

#include "ingot/runtime/cast/cast_stats.h"
#include "ingot/runtime/check_tensor.h"
#include "ingot/runtime/error.h"
#include "ingot/runtime/stream.h"

namespace ingot {
namespace {

const char* count_reason(ScaleGranularity granularity, const char* rowwise) {
  if (granularity == kTensorwise) return "one for the whole tensor";
  if (granularity == kRowGroups) return "one for each group of 128 along K, row by row";
  if (granularity == kBlocks) return "one for each block of 128 x 128, row by row";
  return rowwise;
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
                    std::int64_t k, Device device, const char* rowwise) {
  if (!is_fp8(operand)) return check_absent(what, factors, "a high-precision operand has no factors");
  const std::int64_t count = scale_count(scale, rows, k);
  const char* const reason = count_reason(scale, rowwise);
  const std::int64_t groups = scale.cols == 0 ? 1 : scale_count(scale, 1, k);
  if (groups == 1 || (factors.rows == 1 && factors.cols == count)) {
    return check_vector(what, factors, Dtype::f32, count, device, reason);
  }
  const std::int64_t in_group = scale_count({scale.rows, 0}, rows, k);
  if (factors.rows == groups && factors.cols == in_group) return check_matrix(what, factors, Dtype::f32, device);
  const std::string both =
      fmt::format("{}, or [{}, {}]: those of each group of K in a row of their own", reason, groups, in_group);
  return check_vector(what, factors, Dtype::f32, count, device, both.c_str());
}

}  // namespace

void check_memory(const char* what, const Tensor& tensor, Device device) {
  check_matrix(what, tensor, tensor.dtype, device);
}

bool overlap(const Tensor& a, const Tensor& b) {
  return overlap(Range{"tensor", &a, byte_span(a, "tensor")}, Range{"tensor", &b, byte_span(b, "tensor")});
}

void check_stream(const Stream& stream, const Backend& backend) {
  if (&stream.backend() == &backend) return;
  throw Error(ErrorCode::invalid_argument, "stream",
              fmt::format("belongs to another Context's backend (on {}), not to this one (on {}); make a Stream with "
                          "this backend",
                          print(stream.backend().device()), print(backend.device())));
}

void check_pointers(const char* operation, const void* to, const void* from, std::size_t bytes) {
  if (bytes == 0 || (to != nullptr && from != nullptr)) return;
  throw Error(ErrorCode::invalid_argument, operation,
              fmt::format("{} bytes {} a null pointer; pass memory of at least that size", bytes,
                          to == nullptr ? "to" : "from"));
}

void check(const AmaxSpec& spec, const AmaxTensors& tensors, Device device) {
  validate(spec);
  const Tensor& input = tensors.input;
  const Range in = check_matrix("amax input", input, spec.in, device);
  const Range out = check_vector("amax amax", tensors.amax, Dtype::f32, scale_count(spec.scale, input.rows, input.cols),
                                 device, extent_reason(spec.scale));
  check_overlaps({&in, 1}, {&out, 1});
}

namespace {

// An input that the expression does not read may be without memory.
Range check_values(const char* what, const Tensor& input, Dtype dtype, const Pointwise& expression, Device device) {
  const bool only_shape = expression && !expression.uses_x() && input.data == nullptr;
  if (!only_shape) return check_matrix(what, input, dtype, device);
  if (input.dtype != dtype) refuse(what, input, fmt::format("the spec asks for {}", name(dtype)));
  byte_span(input, what);
  return {what, &input, 0};
}

// Matrices of this dtype and shape; vectors along its columns and rows.
struct Beside {
  Dtype dtype;
  std::int64_t rows, cols;
  const char* shape;
  const char* columns;
  const char* rows_of;
};

Range check_pointwise_input(const PointwiseInput& input, const char* what, const Tensor& given, const Beside& beside,
                            Device device) {
  switch (input.kind) {
    case PointwiseInput::Kind::column:
      return check_vector(what, given, beside.dtype, beside.cols, device, beside.columns);
    case PointwiseInput::Kind::column_f32:
      return check_vector(what, given, Dtype::f32, beside.cols, device, beside.columns);
    case PointwiseInput::Kind::row: return check_vector(what, given, Dtype::f32, beside.rows, device, beside.rows_of);
    default: return check_matrix(what, given, beside.dtype, beside.rows, beside.cols, device, beside.shape);
  }
}

void check_pointwise_inputs(const Pointwise& expression, std::span<const Tensor> tensors,
                            std::span<const char* const> names, const Beside& beside, Device device,
                            std::span<Range> ranges) {
  const auto inputs = expression.inputs();
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (i >= inputs.size()) {
      ranges[i] = check_absent(names[i], tensors[i], "the expression has no such input");
      continue;
    }
    try {
      ranges[i] = check_pointwise_input(inputs[i], names[i], tensors[i], beside, device);
    } catch (const Error& error) {  // "cast inputs[1] (gate): is ...": with the expression's own name for it
      const std::string message = error.what() + error.subject().size() + 2;
      throw Error(error.code(), fmt::format("{} ({})", names[i], inputs[i].name), message);
    }
  }
}

constexpr std::array kCastInputs{"cast inputs[0]", "cast inputs[1]", "cast inputs[2]", "cast inputs[3]"};
constexpr std::array kGemmInputs{"gemm inputs[0]", "gemm inputs[1]", "gemm inputs[2]", "gemm inputs[3]"};
constexpr std::array kElementwiseInputs{"elementwise inputs[0]", "elementwise inputs[1]", "elementwise inputs[2]",
                                        "elementwise inputs[3]"};
static_assert(kCastInputs.size() == kMaxPointwiseInputs && kGemmInputs.size() == kMaxPointwiseInputs &&
              kElementwiseInputs.size() == kMaxPointwiseInputs);

// Of an expression in front of a kernel that reads a matrix.
Beside beside_input(const Tensor& input) {
  return {.dtype = input.dtype,
          .rows = input.rows,
          .cols = input.cols,
          .shape = "the input's shape",
          .columns = "one for each column of the input",
          .rows_of = "one for each row of the input"};
}

Range check_result(const CastSpec& spec, const CastTensors& tensors, Device device) {
  if (!spec.result) return check_absent("cast result", tensors.result, "the spec does not ask for this output");
  return check_matrix("cast result", tensors.result, spec.in, tensors.input.rows, tensors.input.cols, device,
                      "the input's shape");
}

}  // namespace

void check(const CastSpec& spec, const CastTensors& tensors, Device device) {
  validate(spec);
  if (spec.list) {
    throw Error(ErrorCode::invalid_argument, print(spec),
                "this is the spec of a list: make one with make_cast_list(), or leave `list` out");
  }
  const Tensor& input = tensors.input;
  const auto check_codes = [&](const char* what, const Tensor& codes, bool asked, std::int64_t rows, std::int64_t cols,
                               const char* because) {
    if (!asked) return check_absent(what, codes, "the spec does not ask for this output");
    return check_matrix(what, codes, spec.out, rows, cols, device, because);
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

  Range inputs[3 + kMaxPointwiseInputs] = {
      check_values("cast input", input, spec.in, spec.pointwise, device),
      check_extents("cast scales", tensors.scales, given, spec.scale, kDynamic),
      check_extents("cast transposed_scales", tensors.transposed_scales, given && own, own_scale, why_not_own)};
  check_pointwise_inputs(spec.pointwise, tensors.inputs, kCastInputs, beside_input(input), device,
                         std::span(inputs).subspan<3>());
  const Range outputs[] = {
      check_codes("cast codes", tensors.codes, spec.codes, input.rows, input.cols, "the input's shape"),
      check_codes("cast transposed", tensors.transposed, spec.transposed, input.cols, input.rows,
                  "the input's shape, transposed"),
      check_extents("cast factors", tensors.factors, true, spec.scale, ""),
      check_extents("cast transposed_factors", tensors.transposed_factors, own, own_scale, kShared),
      check_extents("cast amax", tensors.amax, given, spec.scale, kDynamic),
      check_extents("cast transposed_amax", tensors.transposed_amax, given && own, own_scale, why_not_own),
      check_result(spec, tensors, device),
      spec.sum
          ? check_vector("cast sum", tensors.sum, *spec.sum, input.cols, device, "one for each column of the input")
          : check_absent("cast sum", tensors.sum, "the spec does not ask for this output")};
  check_overlaps(inputs, outputs);
}

namespace {

// Each element of c is read by who writes that element of the output.
bool in_place(const Tensor& c, const Tensor& out) {
  return c.data == out.data && c.row_stride == out.row_stride && c.dtype == out.dtype;
}

}  // namespace

void check(const ElementwiseSpec& spec, const ElementwiseTensors& tensors, Device device) {
  validate(spec);
  const Tensor& input = tensors.input;
  Range inputs[1 + kMaxPointwiseInputs] = {check_values("elementwise input", input, spec.in, spec.pointwise, device)};
  check_pointwise_inputs(spec.pointwise, tensors.inputs, kElementwiseInputs, beside_input(input), device,
                         std::span(inputs).subspan<1>());
  const Range output =
      check_matrix("elementwise output", tensors.output, spec.in, input.rows, input.cols, device, "the input's shape");
  // Of a matrix, the output may be that itself; vectors are read by all.
  const auto kinds = spec.pointwise.inputs();
  for (std::size_t i = 0; i <= kinds.size(); ++i) {
    if ((i > 0 && kinds[i - 1].kind != PointwiseInput::Kind::matrix) || !overlap(inputs[i], output)) continue;
    if (!in_place(*inputs[i].tensor, tensors.output)) {
      refuse("elementwise output", tensors.output,
             fmt::format("its memory overlaps that of {}, which is {}; the output may be that matrix itself, with the "
                         "same address and row stride, or memory of its own",
                         inputs[i].what, describe(*inputs[i].tensor)));
    }
    inputs[i].bytes = 0;
  }
  check_overlaps(inputs, {&output, 1});
}

void check(const GemmSpec& spec, const GemmTensors& tensors, Device device) {
  validate(spec);
  const Range a = check_matrix("gemm a", tensors.a, spec.a, device);
  const Range b = check_matrix("gemm b", tensors.b, spec.b, device);
  const auto [m, n, k] = gemm_size(spec, tensors);
  if (extent_k(tensors.b, spec.layout_b) != k) {
    refuse("gemm b", tensors.b,
           fmt::format("its K is {} ({}), but that of a, which is {}, is {} ({})", extent_k(tensors.b, spec.layout_b),
                       spec.layout_b == Layout::k_major ? "b is [N, K]" : "b is [K, N]", describe(tensors.a), k,
                       spec.layout_a == Layout::k_major ? "a is [M, K]" : "a is [K, M]"));
  }
  const GemmEpilogue& epilogue = spec.epilogue;
  constexpr const char* kShape = "M of a, N of b";
  const auto check_beside = [&](const char* what, const Tensor& tensor, bool asked, Dtype dtype, const char* why_not) {
    return asked ? check_matrix(what, tensor, dtype, m, n, device, kShape) : check_absent(what, tensor, why_not);
  };
  const auto check_single = [&](const char* what, const Tensor& tensor, bool asked, const char* why_not) {
    return asked ? check_vector(what, tensor, Dtype::f32, 1, device, "one for the whole output")
                 : check_absent(what, tensor, why_not);
  };
  const Range out = check_beside("gemm out", tensors.out, true, spec.out, "");
  const Range c =
      check_beside("gemm c", tensors.c, epilogue.c.has_value(), epilogue.c.value_or(Dtype::f32), "the spec adds no c");
  const bool accumulates = in_place(tensors.c, tensors.out);
  if (!accumulates && overlap(c, out)) {
    refuse("gemm c", tensors.c,
           fmt::format("its memory overlaps that of gemm out, which is {}; c may be the output itself, with the same "
                       "address, dtype and row stride, or memory of its own",
                       describe(tensors.out)));
  }
  constexpr const char* kHighPrecision = "the output is of high precision";
  Range inputs[7 + kMaxPointwiseInputs] = {
      a,
      b,
      check_factors("gemm factor_a", tensors.factor_a, spec.a, spec.scale_a, m, k, device,
                    "one for each of a's M rows"),
      check_factors("gemm factor_b", tensors.factor_b, spec.b, spec.scale_b, n, k, device,
                    "one for each of b's N rows"),
      spec.bias ? check_vector("gemm bias", tensors.bias, bias_dtype(spec), n, device, "one for each of the N columns")
                : check_absent("gemm bias", tensors.bias, "the spec has no bias"),
      check_single("gemm scale", tensors.scale, is_fp8(spec.out), kHighPrecision),
      accumulates ? Range{"gemm c", &tensors.c, 0} : c};
  check_pointwise_inputs(epilogue.pointwise, tensors.inputs, kGemmInputs,
                         {.dtype = epilogue_dtype(spec),
                          .rows = m,
                          .cols = n,
                          .shape = kShape,
                          .columns = "one for each of the N columns",
                          .rows_of = "one for each of the M rows"},
                         device, std::span(inputs).subspan<7>());
  const Range outputs[] = {out,
                           check_beside("gemm preactivation", tensors.preactivation, epilogue.preactivation,
                                        epilogue_dtype(spec), "the spec does not ask for this output"),
                           check_single("gemm amax", tensors.amax, epilogue.amax, "the spec does not ask for it"),
                           check_single("gemm factor", tensors.factor, is_fp8(spec.out), kHighPrecision)};
  check_overlaps(inputs, outputs);
}

void check(const ColumnSumSpec& spec, const ColumnSumTensors& tensors, Device device) {
  validate(spec);
  const Range in = check_matrix("column_sum input", tensors.input, spec.in, device);
  const Range out = check_vector("column_sum sum", tensors.sum, spec.out, tensors.input.cols, device,
                                 "one for each column of the input");
  check_overlaps({&in, 1}, {&out, 1});
}

void check(const RelayoutSpec& spec, const RelayoutTensors& tensors, Device device) {
  const Tensor& input = tensors.input;
  if (!is_fp8(input.dtype)) refuse("relayout input", input, "it must be of an FP8 dtype");
  const Range in = check_matrix("relayout input", input, input.dtype, device);
  const Range out = spec.transposed ? check_matrix("relayout output", tensors.output, input.dtype, input.cols,
                                                   input.rows, device, "the input's shape, transposed")
                                    : check_matrix("relayout output", tensors.output, input.dtype, input.rows,
                                                   input.cols, device, "the input's shape");
  check_overlaps({&in, 1}, {&out, 1});
}

void check(const CastStatsSpec& spec, const CastStatsTensors& tensors, Device device) {
  validate(spec);
  const Tensor& input = tensors.input;
  constexpr const char* kNoCodes = "the spec has no codes";
  const Range inputs[] = {
      check_matrix("cast_stats input", input, spec.in, device),
      !spec.out         ? check_absent("cast_stats codes", tensors.codes, kNoCodes)
      : spec.transposed ? check_matrix("cast_stats codes", tensors.codes, *spec.out, input.cols, input.rows, device,
                                       "the input's shape, transposed")
                        : check_matrix("cast_stats codes", tensors.codes, *spec.out, input.rows, input.cols, device,
                                       "the input's shape"),
      !spec.out ? check_absent("cast_stats factors", tensors.factors, kNoCodes)
                : check_vector("cast_stats factors", tensors.factors, Dtype::f32,
                               scale_count(spec.scale, input.rows, input.cols), device, extent_reason(spec.scale))};
  const Range stats = check_vector("cast_stats stats", tensors.stats, Dtype::f32, kCastStatsWords, device,
                                   "the bytes of one CastStats");
  if (reinterpret_cast<std::uintptr_t>(tensors.stats.data) % alignof(CastStats) != 0) {
    refuse("cast_stats stats", tensors.stats,
           "it must start at a multiple of 8 bytes, as it holds integers of 64 bits");
  }
  check_overlaps(inputs, {&stats, 1});
}

MatmulSize gemm_size(const GemmSpec& spec, const GemmTensors& tensors) {
  return {.m = extent_mn(tensors.a, spec.layout_a),
          .n = extent_mn(tensors.b, spec.layout_b),
          .k = extent_k(tensors.a, spec.layout_a)};
}

FactorStrides factor_strides(const Tensor& factors, ScaleGranularity scale, std::int64_t k) {
  if (scale.cols == 0) return {.row = scale.rows == 0 ? 0 : 1, .group = 0};
  if (factors.rows > 1) return {.row = 1, .group = factors.row_stride};
  return {.row = scale_count(scale, 1, k), .group = 1};
}

}  // namespace ingot
