#include "ingot/runtime/cast/check_cast.h"

#include <fmt/format.h>

#include <cstdint>
#include <span>

#include "ingot/runtime/cast/cast_stats.h"
#include "ingot/runtime/check_tensor.h"
#include "ingot/runtime/error.h"
#include "ingot/runtime/pointwise/check_pointwise.h"

namespace ingot {
namespace {

const char* extent_reason(ScaleGranularity granularity) {
  if (granularity == kTensorwise) return "one for the whole tensor";
  if (granularity == kRowwise) return "one for each row of the input";
  if (granularity == kColumnwise) return "one for each column of the input";
  if (granularity == kRowGroups) return "one for each group of 128 in a row of the input, row by row";
  if (granularity == kColumnGroups) return "one for each group of 128 in a column of the input, 128 rows by 128 rows";
  if (granularity == kBlocks) return "one for each block of 128 x 128 of the input, row by row";
  return "one for each extent of the granularity, row by row";
}

constexpr PointwiseInputNames kCastInputs{"cast inputs[0]", "cast inputs[1]", "cast inputs[2]", "cast inputs[3]"};
constexpr PointwiseInputNames kElementwiseInputs{"elementwise inputs[0]", "elementwise inputs[1]",
                                                 "elementwise inputs[2]", "elementwise inputs[3]"};

Range check_result(const CastSpec& spec, const CastTensors& tensors, Device device) {
  if (!spec.result) return check_absent("cast result", tensors.result, "the spec does not ask for this output");
  return check_matrix("cast result", tensors.result, spec.in, tensors.input.rows, tensors.input.cols, device,
                      "the input's shape");
}

}  // namespace

void check(const AmaxSpec& spec, const AmaxTensors& tensors, Device device) {
  validate_spec(spec);
  const Tensor& input = tensors.input;
  const Range in = check_matrix("amax input", input, spec.in, device);
  const Range out = check_vector("amax amax", tensors.amax, Dtype::f32, scale_count(spec.scale, input.rows, input.cols),
                                 device, extent_reason(spec.scale));
  check_overlaps({&in, 1}, {&out, 1});
}

void check(const CastSpec& spec, const CastTensors& tensors, Device device) {
  validate_spec(spec);
  if (spec.list) {
    throw Error(ErrorCode::invalid_argument, print_spec(spec),
                "this is the spec of a list: make one with make_cast_list(), or leave `list` out");
  }
  const Tensor& input = tensors.input;
  const auto check_codes = [&](const char* what, const Tensor& codes, bool asked, std::int64_t rows, std::int64_t cols,
                               const char* because) {
    if (!asked) return check_absent(what, codes, "the spec does not ask for this output");
    return check_matrix(what, codes, spec.out, rows, cols, device, because);
  };
  // A contiguous vector with one element for each extent of `scale`, if the spec asks for it.
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
  check_pointwise_inputs(spec.pointwise, tensors.inputs, kCastInputs, shape_of_input(input), device,
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

void check(const ElementwiseSpec& spec, const ElementwiseTensors& tensors, Device device) {
  validate_spec(spec);
  const Tensor& input = tensors.input;
  Range inputs[1 + kMaxPointwiseInputs] = {check_values("elementwise input", input, spec.in, spec.pointwise, device)};
  check_pointwise_inputs(spec.pointwise, tensors.inputs, kElementwiseInputs, shape_of_input(input), device,
                         std::span(inputs).subspan<1>());
  const Range output =
      check_matrix("elementwise output", tensors.output, spec.in, input.rows, input.cols, device, "the input's shape");
  // The output may be one of the matrices, but not a vector, which all rows or columns read.
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

void check(const ColumnSumSpec& spec, const ColumnSumTensors& tensors, Device device) {
  validate_spec(spec);
  const Range in = check_matrix("column_sum input", tensors.input, spec.in, device);
  const Range out = check_vector("column_sum sum", tensors.sum, spec.out, tensors.input.cols, device,
                                 "one for each column of the input");
  check_overlaps({&in, 1}, {&out, 1});
}

void check(const CastStatsSpec& spec, const CastStatsTensors& tensors, Device device) {
  validate_spec(spec);
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

}  // namespace ingot
