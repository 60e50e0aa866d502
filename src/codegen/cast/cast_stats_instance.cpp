// The instantiations of templates/cast/cast_stats.cuh that compute both passes of cast_stats.
#include <fmt/format.h>

#include <algorithm>

#include "ingot/codegen/cast/cast_stats_spec.h"
#include "ingot/codegen/types/template_instance.h"
#include "ingot/codegen/types/template_text.h"

#include "cast/cast_stats.cuh"

namespace ingot {

static_assert(std::ranges::all_of(kCastGranularities,
                                  [](ScaleGranularity scale) { return has_factor_steps(scale.rows, scale.cols); }),
              "factor_steps() of templates/cast/cast_stats.cuh lacks one of kCastGranularities");

ExtraPasses extra_passes(const CastStatsSpec&) { return {.first = true}; }

// The granularity is a parameter of the kernel.
TemplateInstance template_instance(const CastStatsSpec& spec, Pass pass) {
  if (pass == Pass::main) return {"cast/cast_stats.cuh", "cast_stats_finish", "cast_stats (finish)"};
  return {
      "cast/cast_stats.cuh",
      fmt::format("cast_stats_tiles<{}, {}, {}>", type_text(spec.in), spec.out ? type_text(*spec.out) : "ingot::Uncast",
                  aggregate_text("CastStatsConfig", {field("transposed", spec.transposed)})),
      fmt::format("cast_stats {}{}{}", name(spec.in), spec.out ? fmt::format("->{}", name(*spec.out)) : "",
                  spec.transposed ? " transposed" : "")};
}

}  // namespace ingot
