#include "ingot/codegen/cast/amax_spec.h"

#include <fmt/format.h>

#include "ingot/codegen/types/spec_checks.h"
#include "ingot/codegen/types/spec_hash.h"
#include "ingot/codegen/types/spec_reader.h"

namespace ingot {

std::string print_spec(const AmaxSpec& spec) {
  return fmt::format("amax {} scale={}", name(spec.in), print(spec.scale));
}

void validate_spec(const AmaxSpec& spec) {
  require_dtype(spec, "in", spec.in, kHighPrecisionDtypes);
  if (spec.scale != kTensorwise && spec.scale != kRowwise && spec.scale != kColumnwise) {
    refuse(spec, fmt::format("scale is {}, but must be tensor, row or col", print(spec.scale)));
  }
}

std::uint64_t hash_spec(const AmaxSpec& spec) { return mix(seed<AmaxSpec>() + pack(spec.in) + mix(bits(spec.scale))); }

void read_spec(const SpecReader& reader, AmaxSpec& spec) {
  reader.require_words(2, "the input's dtype, such as bf16");
  spec.in = reader.dtype(reader.word(1));
  reader.each_option(2, "scale=<granularity>", [&](const SpecOption& option) -> const char* {
    if (option.key != "scale") return nullptr;
    return spec.scale = reader.granularity(option.value, option.word), "scale";
  });
}

void list_valid(std::vector<AmaxSpec>& specs) {
  for (const Dtype in : kHighPrecisionDtypes) {
    for (const auto scale : {kTensorwise, kRowwise, kColumnwise}) specs.push_back({.in = in, .scale = scale});
  }
}

}  // namespace ingot
