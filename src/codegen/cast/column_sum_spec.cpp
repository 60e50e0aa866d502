#include "ingot/codegen/cast/column_sum_spec.h"

#include <fmt/format.h>

#include "ingot/codegen/cast/cast_instances.h"
#include "ingot/codegen/types/spec_hash.h"
#include "ingot/codegen/types/spec_reader.h"
#include "ingot/codegen/types/template_text.h"

namespace ingot {

std::string print_spec(const ColumnSumSpec& spec) {
  return fmt::format("column_sum {}->{}{}", name(spec.in), name(spec.out), spec.experts ? " experts" : "");
}

void validate_spec(const ColumnSumSpec& spec) {
  require_dtype(spec, "in", spec.in, kHighPrecisionDtypes);
  require_dtype(spec, "out", spec.out, kHighPrecisionDtypes);
}

std::uint64_t hash_spec(const ColumnSumSpec& spec) {
  return mix(seed<ColumnSumSpec>() + pack(spec.in, spec.out, spec.experts));
}

void read_spec(const SpecReader& reader, ColumnSumSpec& spec) {
  constexpr const char* kDtypes = "<in>-><out>, such as bf16->f32";
  reader.require_words(2, kDtypes);
  const std::string& dtypes = reader.word(1);
  const auto [in, out] = reader.halves(dtypes, "->", kDtypes);
  spec.in = reader.dtype(in, dtypes);
  spec.out = reader.dtype(out, dtypes);
  reader.each_option(2, "experts", [&](const SpecOption& option) -> const char* {
    if (option.word != "experts") return nullptr;
    return spec.experts = true, "experts";
  });
}

// Not of experts.
void list_valid(std::vector<ColumnSumSpec>& specs) {
  for (const Dtype in : kHighPrecisionDtypes) {
    for (const Dtype out : kHighPrecisionDtypes) specs.push_back({.in = in, .out = out});
  }
}

// ---- The instantiations of templates/cast/column_sum.cuh ------------------------------------------------------------

TemplateInstance column_sum_finish(Dtype out) {
  return {"cast/column_sum.cuh", fmt::format("column_sum_finish<{}>", type_text(out)),
          fmt::format("column_sum ->{}", name(out))};
}

ExtraPasses extra_passes(const ColumnSumSpec&) { return {.first = true}; }

TemplateInstance template_instance(const ColumnSumSpec& spec, Pass pass) {
  if (spec.experts) {
    constexpr const char* kHeader = "cast/column_sum_experts.cuh";
    if (pass == Pass::main) {
      return {kHeader, fmt::format("column_sum_experts_finish<{}>", type_text(spec.out)),
              fmt::format("column_sum ->{} experts", name(spec.out))};
    }
    return {kHeader, fmt::format("column_sum_experts_partials<{}>", type_text(spec.in)),
            fmt::format("column_sum {} experts (first pass)", name(spec.in))};
  }
  if (pass == Pass::main) return column_sum_finish(spec.out);
  return {"cast/column_sum.cuh", fmt::format("column_sum_partials<{}>", type_text(spec.in)),
          fmt::format("column_sum {} (first pass)", name(spec.in))};
}

}  // namespace ingot
