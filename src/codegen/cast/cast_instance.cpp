// The instantiations of templates/cast that compute each pass of a cast.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>

#include "ingot/codegen/cast/cast_instances.h"
#include "ingot/codegen/cast/cast_plan.h"
#include "ingot/codegen/cast/cast_spec.h"
#include "ingot/codegen/pointwise/pointwise_lowering.h"
#include "ingot/codegen/types/template_text.h"

#include "cast/cast_output.cuh"

namespace ingot {

std::string source_text(Dtype in) { return fmt::format("ingot::ValueSource<{}>", type_text(in)); }

std::string source_text(const CastSpec& spec) {
  if (spec.rounded) return fmt::format("ingot::RoundedSource<{}, {}>", type_text(spec.in), type_text(*spec.rounded));
  if (spec.gathered) return fmt::format("ingot::GatheredSource<{}>", type_text(spec.in));
  if (!spec.pointwise) return source_text(spec.in);
  return fmt::format("ingot::ValueSource<{}, ingot::{}, {}>", type_text(spec.in), kFunctorName,
                     aggregate_text("ValueConfig", {field("unrounded", spec.unrounded)}));
}

std::string functor(const CastSpec& spec) {
  if (!spec.pointwise) return {};
  return render(spec.pointwise, kFunctorName, value_precision(spec));
}

std::string value_words(const CastSpec& spec) {
  if (spec.rounded) return fmt::format("{} rounded={}", name(spec.in), name(*spec.rounded));
  if (!spec.pointwise) return std::string(name(spec.in));
  return fmt::format("{} of {}{}{}", name(spec.in), print(spec.pointwise), spec.unrounded ? " unrounded" : "",
                     spec.fast_math ? " fast" : "");
}

namespace {

static_assert(std::ranges::all_of(kCastGranularities,
                                  [](ScaleGranularity scale) {
                                    return has_cast_scales(cast_output_config(true, scale));
                                  }),
              "has_cast_scales() of templates/cast/cast_output.cuh lacks one of kCastGranularities");
static_assert(std::ranges::all_of(kCastGranularities,
                                  [](ScaleGranularity scale) {
                                    return from_first_pass(scale) == from_pass(cast_output_config(true, scale));
                                  }),
              "within_tile() of templates/cast/cast_output.cuh and from_first_pass() of cast_plan.h disagree about "
              "one of kCastGranularities");

FieldText output_field(std::string_view name, const CastOutputConfig& output) {
  if (!output.written) return field(name, std::string("{}"));
  const std::string scale = aggregate_text({field("rows", output.scale.rows), field("cols", output.scale.cols)});
  return field(name, aggregate_text({field("written", true), field("scale", scale)}));
}

// The outputs whose maxima a pass before the casts of a list, or of stacked matrices, finds.
TemplateInstance listed_maxima(const CastSpec& spec) {
  const ScaleGranularity transposed_scale = spec.transposed_scale.value_or(spec.scale);
  const bool own = spec.transposed && (spec.transposed_scale || !spec.codes);
  const auto output = [](bool written, ScaleGranularity scale) {
    return cast_output_config(written && from_first_pass(scale), scale);
  };
  if (finds_columns(spec)) {
    const bool rows = cast_schedule(spec) == CastSchedule::tiles;
    return cast_list_maxima(spec, output(rows, spec.scale), output(true, kColumnwise), rows ? "row+col" : "col");
  }
  return cast_list_maxima(
      spec, output(spec.codes, spec.scale), output(own, transposed_scale),
      spec.transposed_scale ? print(spec.scale) + "+" + print(transposed_scale) : print(spec.scale));
}

// The two steps of CastSchedule::rows_then_tiles as separate casts.
CastSpec rows_step(const CastSpec& spec) {
  CastSpec rows = spec;
  rows.transposed = false;
  rows.sum.reset();
  return rows;
}
CastSpec tiles_step(const CastSpec& spec) {
  CastSpec tiles = spec;
  tiles.codes = false;
  tiles.result = false;
  return tiles;
}

// pow2 is a parameter of the kernel; every sum is the same until the finishing pass rounds it. Maxima are found by
// kernels of their own.
// What goes along the rows takes stacked matrices for one.
std::string kernel_words(CastSpec spec) {
  spec.pow2 = false;
  spec.found_amax.reset();
  const CastSchedule schedule = cast_schedule(spec);
  if (schedule == CastSchedule::rows || schedule == CastSchedule::row_groups) spec.stacked = false;
  if (spec.sum) spec.sum = Dtype::f32;
  return print_spec(spec);
}

std::string rows_config(const CastSpec& spec) {
  return aggregate_text("CastRowsConfig", {field("result", spec.result)});
}

TemplateInstance cast_rows(const CastSpec& spec) {
  return {spec.gathered ? "cast/cast_gathered_rows.cuh" : "cast/cast_rows.cuh",
          fmt::format("cast_rows<{}, {}, {}>", source_text(spec), type_text(spec.out), rows_config(spec)),
          kernel_words(spec), functor(spec)};
}

// The kernel of rows with blocks to themselves: of the pass that goes along the rows, in either schedule.
TemplateInstance cast_rows_wide(const CastSpec& spec) {
  return {spec.gathered ? "cast/cast_gathered_rows.cuh" : "cast/cast_rows_wide.cuh",
          fmt::format("cast_rows_wide<{}, {}, {}>", source_text(spec), type_text(spec.out), rows_config(spec)),
          kernel_words(spec) + " (wide rows)", functor(spec)};
}

TemplateInstance cast_rows_columns(const CastSpec& spec) {
  return {"cast/cast_rows_columns.cuh",
          fmt::format("cast_rows_columns<{}, {}>", source_text(spec), type_text(spec.out)),
          kernel_words(spec) + " (and the maxima of columns)", functor(spec)};
}

// keeps: the pass also writes the values (Pass::keeping).
TemplateInstance first_instance(const CastSpec& spec, bool keeps) {
  if (cast_schedule(spec) == CastSchedule::rows_then_tiles) return cast_rows(rows_step(spec));
  if (spec.list || spec.stacked) return listed_maxima(spec);
  const FirstPass wanted = first_pass(spec);
  const FirstPass::Kind kind = wanted.kind();
  if (!spec.pointwise && kind == FirstPass::Kind::partials) return amax_partials(spec.in);
  if (!spec.pointwise && kind == FirstPass::Kind::rows) return amax_rows(spec.in);
  const std::string source = spec.gathered ? source_text(spec.in) : source_text(spec);  // maxima of all rows
  const std::string values = value_words(spec);
  TemplateInstance made =
      kind == FirstPass::Kind::partials
          ? TemplateInstance{"cast/amax.cuh", fmt::format("amax_partials<{}{}>", source, keeps ? ", true" : ""),
                             fmt::format("{}partial maxima of {}", keeps ? "values and " : "", values)}
      : kind == FirstPass::Kind::rows ? TemplateInstance{"cast/amax.cuh", fmt::format("amax_rows<{}>", source),
                                                         fmt::format("maxima of rows of {}", values)}
                                      : amax_tiles(source, wanted, values, keeps);
  made.functor = functor(spec);
  return made;
}

// The template arguments that casts in tiles have in common. Kernels that need no unaligned rows keep the text, and so
// the stored machine code, that they had before there were others.
std::string tiles_arguments(const CastSpec& spec, const CastConfig& made) {
  const FieldText codes = output_field("codes", made.codes);
  const FieldText transposed = output_field("transposed", made.transposed);
  const FieldText given = field("given_scales", made.given_scales);
  const FieldText result = field("result", made.result);
  const FieldText sum = field("sum", made.sum);
  const std::string config =
      made.kept        ? aggregate_text("CastConfig",
                                        {codes, transposed, given, result, sum, field("unaligned", true), field("kept", true)})
      : made.unaligned ? aggregate_text("CastConfig", {codes, transposed, given, result, sum, field("unaligned", true)})
                       : aggregate_text("CastConfig", {codes, transposed, given, result, sum});
  return fmt::format("{}, {}, {}", source_text(spec), type_text(spec.out), config);
}

TemplateInstance cast_whole(const CastSpec& spec) {
  return {"cast/cast_whole.cuh",
          fmt::format("cast_whole<{}>", tiles_arguments(spec, cast_tiles_config(spec, Variant::whole))),
          kernel_words(spec) + " (in one launch)", functor(spec)};
}

TemplateInstance cast_row_groups(const CastSpec& spec) {
  return {"cast/cast_row_groups.cuh",
          fmt::format("cast_row_groups<{}, {}, {}>", source_text(spec), type_text(spec.out), rows_config(spec)),
          kernel_words(spec), functor(spec)};
}

TemplateInstance cast_tiles(const CastSpec& spec, Pass pass) {
  const std::string arguments = tiles_arguments(spec, cast_tiles_config(spec, pass.variant));
  const std::string words = kernel_words(spec) + (pass == Pass::unaligned ? " (any alignment)" : "");
  if (spec.list) return {"cast/cast_list.cuh", fmt::format("cast_list<{}>", arguments), words, functor(spec)};
  if (spec.stacked) return {"cast/cast_stack.cuh", fmt::format("cast_stack<{}>", arguments), words, functor(spec)};
  if (spec.experts) return {"cast/cast_experts.cuh", fmt::format("cast_experts<{}>", arguments), words, functor(spec)};
  const char* const header = spec.gathered ? "cast/cast_gathered.cuh" : "cast/cast_tiles.cuh";
  return {header, fmt::format("cast_tiles<{}>", arguments), words, functor(spec)};
}

// Does the expression take many instructions for an element? The GPU's own functions, which fast math uses, do not.
bool is_costly(const CastSpec& spec) {
  constexpr std::array kCostly{PointwiseOp::exp,   PointwiseOp::expm1,   PointwiseOp::log, PointwiseOp::log1p,
                               PointwiseOp::tanh,  PointwiseOp::sigmoid, PointwiseOp::erf, PointwiseOp::sqrt,
                               PointwiseOp::rsqrt, PointwiseOp::divide};
  return !spec.fast_math && std::ranges::any_of(spec.pointwise.steps(), [&](const PointwiseStep& step) {
    return std::ranges::find(kCostly, step.op) != kCostly.end();
  });
}
// May the first pass write the values of the expression, as a matrix that the cast reads? Not of one matrix: writing
// and reading the values then moves more bytes than reading the matrix twice.
bool may_keep_values(const CastSpec& spec) {
  if (!spec.pointwise || spec.list || spec.unrounded || cast_schedule(spec) != CastSchedule::tiles) return false;
  const FirstPass::Kind kind = first_pass(spec).kind();
  const auto inputs = spec.pointwise.inputs();
  const auto matrices = std::ranges::count(inputs, PointwiseInput::Kind::matrix, &PointwiseInput::kind);
  return spec.transposed && (kind == FirstPass::Kind::partials || kind == FirstPass::Kind::tiles) &&
         matrices + (spec.pointwise.uses_x() ? 1 : 0) > 1 && is_costly(spec);
}
TemplateInstance cast_kept(CastSpec spec) {
  spec.pointwise = {};
  spec.fast_math = false;
  return {"cast/cast_tiles.cuh",
          fmt::format("cast_tiles<{}>", tiles_arguments(spec, cast_tiles_config(spec, Variant::kept))),
          kernel_words(spec) + " (kept values)",
          {}};
}

}  // namespace

TemplateInstance cast_list_maxima(const CastSpec& spec, const CastOutputConfig& first, const CastOutputConfig& second,
                                  const std::string& scales) {
  const std::string config =
      aggregate_text("CastConfig", {output_field("codes", first), output_field("transposed", second)});
  const std::string arguments = fmt::format("<{}, {}>", source_text(spec), config);
  const std::string words = fmt::format("maxima for scale={} of {}", scales, value_words(spec));
  if (spec.stacked) return {"cast/cast_stack.cuh", "cast_stack_maxima" + arguments, "stacked: " + words, {}};
  return {"cast/cast_list.cuh", "cast_list_maxima" + arguments, "list: " + words, functor(spec)};
}

ExtraPasses extra_passes(const CastSpec& spec) {
  const CastSchedule schedule = cast_schedule(spec);
  const bool first = schedule == CastSchedule::rows_then_tiles || finds_columns(spec) ||
                     first_pass(spec).kind() != FirstPass::Kind::none;
  return {.first = first,
          .finish = spec.sum.has_value(),
          .whole = finds_columns(spec) || (first && !spec.list && !spec.stacked && !spec.gathered),
          .unaligned = spec.transposed && !spec.experts,
          .wide = schedule == CastSchedule::rows,
          .first_wide = schedule == CastSchedule::rows_then_tiles,
          .kept = may_keep_values(spec)};
}

TemplateInstance template_instance(const CastSpec& spec, Pass pass) {
  if (pass.variant == Variant::wide) return cast_rows_wide(rows_step(spec));
  if (pass.stage == Stage::first) return first_instance(spec, pass == Pass::keeping);
  if (pass == Pass::finish) return column_sum_finish(*spec.sum);
  if (pass == Pass::whole) return finds_columns(spec) ? cast_rows_columns(spec) : cast_whole(spec);
  if (pass == Pass::kept) return cast_kept(spec);
  switch (cast_schedule(spec)) {
    case CastSchedule::rows: return cast_rows(spec);
    case CastSchedule::row_groups: return cast_row_groups(spec);
    case CastSchedule::rows_then_tiles: return cast_tiles(tiles_step(spec), pass);
    case CastSchedule::tiles: break;
  }
  return cast_tiles(spec, pass);
}

}  // namespace ingot
