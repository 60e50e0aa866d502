#include "ingot/codegen/cast/column_sum_instance.h"

#include <fmt/format.h>

#include "ingot/codegen/cast/column_sum_spec.h"
#include "ingot/codegen/types/template_text.h"

namespace ingot {

TemplateInstance column_sum_finish(Dtype out) {
  return {"cast/column_sum.cuh", fmt::format("column_sum_finish<{}>", type_text(out)),
          fmt::format("column_sum ->{}", name(out))};
}

ExtraPasses extra_passes(const ColumnSumSpec&) { return {.first = true}; }

TemplateInstance template_instance(const ColumnSumSpec& spec, Pass pass) {
  if (pass == Pass::main) return column_sum_finish(spec.out);
  return {"cast/column_sum.cuh", fmt::format("column_sum_partials<{}>", type_text(spec.in)),
          fmt::format("column_sum {} (first pass)", name(spec.in))};
}

}  // namespace ingot
