#include "ingot/codegen/cast/combine_spec.h"

#include <fmt/format.h>

#include "ingot/codegen/cast/cast_instances.h"
#include "ingot/codegen/types/spec_hash.h"
#include "ingot/codegen/types/spec_reader.h"
#include "ingot/codegen/types/template_text.h"

namespace ingot {

std::string print_spec(const CombineSpec& spec) { return fmt::format("combine {}", name(spec.in)); }

void validate_spec(const CombineSpec& spec) { require_dtype(spec, "in", spec.in, kHighPrecisionDtypes); }

std::uint64_t hash_spec(const CombineSpec& spec) { return mix(seed<CombineSpec>() + pack(spec.in)); }

void read_spec(const SpecReader& reader, CombineSpec& spec) {
  reader.require_words(2, "the dtype of its values, such as bf16");
  spec.in = reader.dtype(reader.word(1));
  reader.no_options(2, "nothing after the dtype");
}

void list_valid(std::vector<CombineSpec>& specs) {
  for (const Dtype in : kHighPrecisionDtypes) specs.push_back({.in = in});
}

ExtraPasses extra_passes(const CombineSpec&) { return {}; }

TemplateInstance template_instance(const CombineSpec& spec, Pass) {
  return {"cast/combine.cuh", fmt::format("combine<{}>", type_text(spec.in)), print_spec(spec)};
}

}  // namespace ingot
