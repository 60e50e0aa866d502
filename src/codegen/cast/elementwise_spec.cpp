#include "ingot/codegen/cast/elementwise_spec.h"

#include <fmt/format.h>

#include "ingot/codegen/cast/cast_instances.h"
#include "ingot/codegen/types/spec_hash.h"
#include "ingot/codegen/types/spec_reader.h"
#include "ingot/codegen/types/template_text.h"

namespace ingot {

CastSpec cast_of_values(const ElementwiseSpec& spec) {
  return {.in = spec.in, .pointwise = spec.pointwise, .fast_math = spec.fast_math, .result = true};
}

std::string print_spec(const ElementwiseSpec& spec) {
  return fmt::format("elementwise {}{}{}{}", name(spec.in), spec.pointwise ? " of=" : "", print_word(spec.pointwise),
                     spec.fast_math ? " fast" : "");
}

void validate_spec(const ElementwiseSpec& spec) {
  require_dtype(spec, "in", spec.in, kHighPrecisionDtypes);
  if (!spec.pointwise) {
    refuse(spec, "there is no pointwise expression, but it is all that this kernel computes: of=silu(x)*gate");
  }
}

std::uint64_t hash_spec(const ElementwiseSpec& spec) {
  return mix(seed<ElementwiseSpec>() + pack(spec.in, spec.fast_math) + mix(spec.pointwise.hash()));
}

void read_spec(const SpecReader& reader, ElementwiseSpec& spec) {
  reader.require_words(2, "the dtype of its values, such as bf16");
  spec.in = reader.dtype(reader.word(1));
  reader.each_option(2, "of=<expression> or fast", [&](const SpecOption& option) -> const char* {
    if (option.word == "fast") return spec.fast_math = true, "fast";
    if (option.key == "of") return spec.pointwise = parse_pointwise(option.value), "the expression";
    return nullptr;
  });
}

// None: there is no end of expressions, and every spec has one.
void list_valid(std::vector<ElementwiseSpec>&) {}

// ---- The instantiations of templates/cast/elementwise.cuh -----------------------------------------------------------

ExtraPasses extra_passes(const ElementwiseSpec&) { return {}; }

TemplateInstance template_instance(const ElementwiseSpec& spec, Pass) {
  return {"cast/elementwise.cuh",
          fmt::format("elementwise<ingot::ValueSource<{}, ingot::{}, {}>>", type_text(spec.in), kFunctorName,
                      aggregate_text("ValueConfig", {field("in_place", true)})),
          print_spec(spec), functor(cast_of_values(spec))};
}

}  // namespace ingot
