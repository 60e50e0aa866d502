#include "ingot/codegen/cast/amax_instance.h"

#include <fmt/format.h>

#include "ingot/codegen/cast/amax_spec.h"
#include "ingot/codegen/cast/cast_values.h"
#include "ingot/codegen/types/template_text.h"

namespace ingot {

TemplateInstance amax_partials(Dtype in) {
  return {"cast/amax.cuh", fmt::format("amax_partials<{}>", source_text(in)),
          print_spec(AmaxSpec{.in = in, .scale = kTensorwise}) + " (first pass)"};
}

TemplateInstance amax_rows(Dtype in) {
  return {"cast/amax.cuh", fmt::format("amax_rows<{}>", source_text(in)),
          print_spec(AmaxSpec{.in = in, .scale = kRowwise})};
}

TemplateInstance amax_tiles(const std::string& values, const FirstPass& wanted, const std::string& words, bool keeps) {
  const FieldText tensor = field("tensor", wanted.tensor);
  const FieldText rows = field("rows", wanted.rows);
  const FieldText columns = field("columns", wanted.columns);
  const std::string config = keeps ? aggregate_text("AmaxTilesConfig", {tensor, rows, columns, field("keeps", true)})
                                   : aggregate_text("AmaxTilesConfig", {tensor, rows, columns});
  return {"cast/amax.cuh", fmt::format("amax_tiles<{}, {}>", values, config),
          fmt::format("{}maxima of{}{}{} of {}", keeps ? "values and " : "", wanted.tensor ? " tensor" : "",
                      wanted.rows ? " rows" : "", wanted.columns ? " columns" : "", words)};
}

ExtraPasses extra_passes(const AmaxSpec& spec) { return {.first = spec.scale == kTensorwise}; }

TemplateInstance template_instance(const AmaxSpec& spec, Pass pass) {
  if (pass == Pass::first) return amax_partials(spec.in);
  if (spec.scale == kColumnwise) {
    return amax_tiles(source_text(spec.in), {.columns = true}, std::string(name(spec.in)));
  }
  // The partial maxima are reduced as a matrix of one row.
  return amax_rows(spec.scale == kTensorwise ? Dtype::f32 : spec.in);
}

}  // namespace ingot
