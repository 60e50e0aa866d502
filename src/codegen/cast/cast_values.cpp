#include "ingot/codegen/cast/cast_values.h"

#include <fmt/format.h>

#include "ingot/codegen/pointwise/pointwise_render.h"
#include "ingot/codegen/types/template_text.h"

namespace ingot {

std::string source_text(Dtype in) { return fmt::format("ingot::ValueSource<{}>", type_text(in)); }

std::string source_text(const CastSpec& spec) {
  if (!spec.pointwise) return source_text(spec.in);
  return fmt::format("ingot::ValueSource<{}, ingot::{}, {}>", type_text(spec.in), kFunctorName,
                     aggregate_text("ValueConfig", {field("unrounded", spec.unrounded)}));
}

std::string functor(const CastSpec& spec) {
  if (!spec.pointwise) return {};
  const bool to_f32 = spec.unrounded || spec.in == Dtype::f32;
  return render(spec.pointwise, kFunctorName,
                spec.fast_math ? PointwisePrecision::fast
                : to_f32       ? PointwisePrecision::reproducible32
                               : PointwisePrecision::reproducible16);
}

std::string value_words(const CastSpec& spec) {
  if (!spec.pointwise) return std::string(name(spec.in));
  return fmt::format("{} of {}{}{}", name(spec.in), print(spec.pointwise), spec.unrounded ? " unrounded" : "",
                     spec.fast_math ? " fast" : "");
}

}  // namespace ingot
