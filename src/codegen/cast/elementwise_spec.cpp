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
  for (const Pointwise* const expression : {&spec.pointwise, &spec.second, &spec.row_sum}) {
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

CastSpec cast_of_summed(const ElementwiseSpec& spec) {
  CastSpec cast = cast_of_values(spec);
  cast.pointwise = spec.row_sum;
  cast.unrounded = true;
  return cast;
}

std::string print_spec(const ElementwiseSpec& spec) {
  return fmt::format("elementwise {}{}{}{}{}{}{}{}{}{}", name(spec.in), spec.pointwise ? " of=" : "",
                     print_word(spec.pointwise), spec.second ? " second=" : "", print_word(spec.second),
                     spec.row_sum ? " row_sum=" : "", print_word(spec.row_sum), spec.amax ? " amax" : "",
                     spec.maxima ? " maxima" : "", spec.fast_math ? " fast" : "");
}

namespace {

// Each input that several expressions have must be one and the same.
void check_shared_inputs(const ElementwiseSpec& spec) {
  const ElementwiseInputs inputs(spec);
  const char* const all = spec.second && spec.row_sum ? "three" : "two";
  for (const Pointwise* const expression : {&spec.second, &spec.row_sum}) {
    for (const PointwiseInput& input : expression->inputs()) {
      if (inputs.all()[inputs.index_of(input.name)]->kind == input.kind) continue;
      refuse(spec, fmt::format("the {0} expressions read {1} as inputs of different kinds: give one of the {0} another "
                               "name",
                               all, input.name));
    }
  }
  if (inputs.all().size() <= kMaxPointwiseInputs) return;
  refuse(spec, fmt::format("the {} expressions read {} inputs besides x, but a kernel reads at most {}", all,
                           inputs.all().size(), kMaxPointwiseInputs));
}

}  // namespace

void validate_spec(const ElementwiseSpec& spec) {
  require_dtype(spec, "in", spec.in, kHighPrecisionDtypes);
  if (!spec.pointwise) {
    refuse(spec, "there is no pointwise expression, but it is all that this kernel computes: of=silu(x)*gate");
  }
  if (spec.second || spec.row_sum) check_shared_inputs(spec);
  if (spec.row_sum && spec.amax) {
    refuse(spec, "amax is set with a row_sum, but no kernel finds both: find the amax in another pass");
  }
  if (spec.maxima && spec.amax) {
    refuse(spec, "amax is set with maxima, but no kernel finds both: the amax is the largest of row_amax");
  }
}

std::uint64_t hash_spec(const ElementwiseSpec& spec) {
  return mix(seed<ElementwiseSpec>() + pack(spec.in, spec.fast_math, spec.amax, spec.maxima) +
             mix(spec.pointwise.hash()) + (spec.second ? mix(mix(spec.second.hash())) : 0) +
             (spec.row_sum ? mix(mix(mix(spec.row_sum.hash()))) : 0));
}

void read_spec(const SpecReader& reader, ElementwiseSpec& spec) {
  reader.require_words(2, "the dtype of its values, such as bf16");
  spec.in = reader.dtype(reader.word(1));
  const auto take = [&](const SpecOption& option) -> const char* {
    if (option.word == "amax") return spec.amax = true, "amax";
    if (option.word == "maxima") return spec.maxima = true, "maxima";
    if (option.word == "fast") return spec.fast_math = true, "fast";
    if (option.key == "of") return spec.pointwise = parse_pointwise(option.value), "the expression";
    if (option.key == "second") return spec.second = parse_pointwise(option.value), "the second expression";
    if (option.key == "row_sum") return spec.row_sum = parse_pointwise(option.value), "the row sum's expression";
    return nullptr;
  };
  reader.each_option(2, "of=<expression>, second=<expression>, row_sum=<expression>, amax, maxima or fast", take);
}

// None: there is no end of expressions, and every spec has one.
void list_valid(std::vector<ElementwiseSpec>&) {}

// ---- The instantiations of templates/cast/elementwise.cuh, and of those that do more (elementwise_*.cuh) ------------

namespace {

constexpr const char* kSecondFunctorName = "Second";
constexpr const char* kSummedFunctorName = "Summed";

// Those of several expressions take everything that the kernel loads.
std::string functors(const ElementwiseSpec& spec) {
  if (!spec.second && !spec.row_sum) return functor(cast_of_values(spec));
  const ElementwiseInputs inputs(spec);
  const PointwiseParameters parameters{.x = uses_x(spec), .inputs = inputs.all()};
  const PointwisePrecision precision = value_precision(cast_of_values(spec));
  std::string all = render(spec.pointwise, kFunctorName, precision, parameters);
  if (spec.second) all += render(spec.second, kSecondFunctorName, precision, parameters);
  if (spec.row_sum) all += render(spec.row_sum, kSummedFunctorName, value_precision(cast_of_summed(spec)), parameters);
  return all;
}

}  // namespace

ExtraPasses extra_passes(const ElementwiseSpec&) { return {}; }

TemplateInstance template_instance(const ElementwiseSpec& spec, Pass) {
  const std::string values = fmt::format("ingot::ValueSource<{}, ingot::{}, {}>", type_text(spec.in), kFunctorName,
                                         aggregate_text("ValueConfig", {field("in_place", true)}));
  const std::string arguments = spec.second ? fmt::format("{}, ingot::{}", values, kSecondFunctorName) : values;
  const char* const kernel = spec.second ? "elementwise_pair" : "elementwise";
  const char* const output = spec.second ? "ElementwisePairOutput" : "ElementwiseOutput";
  if (spec.maxima) {
    return {"cast/elementwise_maxima.cuh",
            fmt::format("elementwise_maxima<ingot::{}<{}>, ingot::{}>", output, arguments,
                        spec.row_sum ? kSummedFunctorName : "NothingSummed"),
            print_spec(spec), functors(spec)};
  }
  if (spec.row_sum) {
    return {"cast/elementwise_rows.cuh",
            fmt::format("elementwise_rows<ingot::{}<{}>, ingot::{}>", output, arguments, kSummedFunctorName),
            print_spec(spec), functors(spec)};
  }
  if (!spec.amax) {
    return {fmt::format("cast/{}.cuh", kernel), fmt::format("{}<{}>", kernel, arguments), print_spec(spec),
            functors(spec)};
  }
  return {"cast/elementwise_amax.cuh", fmt::format("elementwise_amax<ingot::{}<{}>>", output, arguments),
          print_spec(spec), functors(spec)};
}

}  // namespace ingot
