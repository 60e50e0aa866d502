// The instantiation of templates/cast/elementwise.cuh that computes an expression on its own.
#include <fmt/format.h>

#include "ingot/codegen/cast/cast_values.h"
#include "ingot/codegen/cast/elementwise_spec.h"
#include "ingot/codegen/types/template_instance.h"
#include "ingot/codegen/types/template_text.h"

namespace ingot {

ExtraPasses extra_passes(const ElementwiseSpec&) { return {}; }

TemplateInstance template_instance(const ElementwiseSpec& spec, Pass) {
  return {"cast/elementwise.cuh",
          fmt::format("elementwise<ingot::ValueSource<{}, ingot::{}, {}>>", type_text(spec.in), kFunctorName,
                      aggregate_text("ValueConfig", {field("in_place", true)})),
          print_spec(spec), functor(cast_of_values(spec))};
}

}  // namespace ingot
