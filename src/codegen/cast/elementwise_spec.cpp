#include "ingot/codegen/cast/elementwise_spec.h"

#include <fmt/format.h>

#include <algorithm>

#include "ingot/codegen/cast/cast_instances.h"
#include "ingot/codegen/pointwise/pointwise_lowering.h"
#include "ingot/codegen/types/spec_hash.h"
#include "ingot/codegen/types/spec_reader.h"
#include "ingot/codegen/types/template_text.h"

namespace ingot {

ElementwiseInputs::ElementwiseInputs(const ElementwiseSpec& spec) {
  for (const Pointwise* const expression : {&spec.pointwise, &spec.second}) {
    for (const PointwiseInput& input : expression->inputs()) {
      if (index_of(input.name) == count_) inputs_[count_++] = &input;
    }
  }
}

std::size_t ElementwiseInputs::index_of(std::string_view input) const {
  const auto known = all();
  const auto found =
      std::ranges::find(known, input, [](const PointwiseInput* each) -> std::string_view { return each->name; });
  return static_cast<std::size_t>(found - known.begin());
}

CastSpec cast_of_values(const ElementwiseSpec& spec, bool of_second) {
  return {.in = spec.in,
          .pointwise = of_second ? spec.second : spec.pointwise,
          .fast_math = spec.fast_math,
          .result = true};
}

std::string print_spec(const ElementwiseSpec& spec) {
  return fmt::format("elementwise {}{}{}{}{}{}", name(spec.in), spec.pointwise ? " of=" : "",
                     print_word(spec.pointwise), spec.second ? " second=" : "", print_word(spec.second),
                     spec.fast_math ? " fast" : "");
}

namespace {

// Each input that both expressions have must be one and the same.
void check_shared_inputs(const ElementwiseSpec& spec) {
  const ElementwiseInputs inputs(spec);
  for (const PointwiseInput& input : spec.second.inputs()) {
    if (inputs.all()[inputs.index_of(input.name)]->kind == input.kind) continue;
    refuse(spec,
           fmt::format("the two expressions read {} as inputs of different kinds: give one of the two another name",
                       input.name));
  }
  if (inputs.all().size() <= kMaxPointwiseInputs) return;
  refuse(spec, fmt::format("the two expressions read {} inputs besides x, but a kernel reads at most {}",
                           inputs.all().size(), kMaxPointwiseInputs));
}

}  // namespace

void validate_spec(const ElementwiseSpec& spec) {
  require_dtype(spec, "in", spec.in, kHighPrecisionDtypes);
  if (!spec.pointwise) {
    refuse(spec, "there is no pointwise expression, but it is all that this kernel computes: of=silu(x)*gate");
  }
  if (spec.second) check_shared_inputs(spec);
}

std::uint64_t hash_spec(const ElementwiseSpec& spec) {
  return mix(seed<ElementwiseSpec>() + pack(spec.in, spec.fast_math) + mix(spec.pointwise.hash()) +
             (spec.second ? mix(mix(spec.second.hash())) : 0));
}

void read_spec(const SpecReader& reader, ElementwiseSpec& spec) {
  reader.require_words(2, "the dtype of its values, such as bf16");
  spec.in = reader.dtype(reader.word(1));
  reader.each_option(2, "of=<expression>, second=<expression> or fast", [&](const SpecOption& option) -> const char* {
    if (option.word == "fast") return spec.fast_math = true, "fast";
    if (option.key == "of") return spec.pointwise = parse_pointwise(option.value), "the expression";
    if (option.key == "second") return spec.second = parse_pointwise(option.value), "the second expression";
    return nullptr;
  });
}

// None: there is no end of expressions, and every spec has one.
void list_valid(std::vector<ElementwiseSpec>&) {}

// ---- The instantiations of templates/cast/elementwise.cuh and elementwise_pair.cuh ----------------------------------

namespace {

constexpr const char* kSecondFunctorName = "Second";

// Two functors, each of which takes everything that the kernel loads.
TemplateInstance pair_instance(const ElementwiseSpec& spec, const std::string& values) {
  const ElementwiseInputs inputs(spec);
  const PointwiseParameters parameters{.x = uses_x(spec), .inputs = inputs.all()};
  const PointwisePrecision precision = value_precision(cast_of_values(spec));
  return {"cast/elementwise_pair.cuh", fmt::format("elementwise_pair<{}, ingot::{}>", values, kSecondFunctorName),
          print_spec(spec),
          render(spec.pointwise, kFunctorName, precision, parameters) +
              render(spec.second, kSecondFunctorName, precision, parameters)};
}

}  // namespace

ExtraPasses extra_passes(const ElementwiseSpec&) { return {}; }

TemplateInstance template_instance(const ElementwiseSpec& spec, Pass) {
  const std::string values = fmt::format("ingot::ValueSource<{}, ingot::{}, {}>", type_text(spec.in), kFunctorName,
                                         aggregate_text("ValueConfig", {field("in_place", true)}));
  if (spec.second) return pair_instance(spec, values);
  return {"cast/elementwise.cuh", fmt::format("elementwise<{}>", values), print_spec(spec),
          functor(cast_of_values(spec))};
}

}  // namespace ingot
