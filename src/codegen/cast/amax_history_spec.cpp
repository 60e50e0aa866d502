#include "ingot/codegen/cast/amax_history_spec.h"

#include <fmt/format.h>

#include "ingot/codegen/types/spec_checks.h"
#include "ingot/codegen/types/spec_hash.h"
#include "ingot/codegen/types/spec_reader.h"

namespace ingot {
namespace {

const char* name_of(AmaxReduction reduction) {
  return reduction == AmaxReduction::max ? "max" : reduction == AmaxReduction::most_recent ? "most_recent" : "unknown";
}

}  // namespace

std::string print_spec(const AmaxHistorySpec& spec) {
  return fmt::format("amax_history reduce={}{}", name_of(spec.reduction), spec.finite ? " finite" : "");
}

void validate_spec(const AmaxHistorySpec& spec) {
  if (spec.reduction != AmaxReduction::max && spec.reduction != AmaxReduction::most_recent) {
    refuse(spec, fmt::format("reduction is {}, which is not valid; it must be max or most_recent",
                             static_cast<unsigned>(spec.reduction)));
  }
}

std::uint64_t hash_spec(const AmaxHistorySpec& spec) {
  return mix(seed<AmaxHistorySpec>() + pack(spec.reduction, spec.finite));
}

void read_spec(const SpecReader& reader, AmaxHistorySpec& spec) {
  constexpr const char* kForm = "reduce=max or reduce=most_recent";
  reader.require_words(2, kForm);
  const std::string& word = reader.word(1);
  if (word != "reduce=max" && word != "reduce=most_recent") reader.fail(fmt::format("\"{}\" must be {}", word, kForm));
  spec.reduction = word == "reduce=max" ? AmaxReduction::max : AmaxReduction::most_recent;
  reader.each_option(2, "finite", [&](const SpecOption& option) -> const char* {
    return option.word == "finite" ? (spec.finite = true, "finite") : nullptr;
  });
}

void list_valid(std::vector<AmaxHistorySpec>& specs) {
  for (const AmaxReduction reduction : kAmaxReductions) {
    for (const bool finite : {false, true}) specs.push_back({.reduction = reduction, .finite = finite});
  }
}

}  // namespace ingot
