// Relayout specs: their text, their hash and the list of all.
#include "ingot/codegen/gemm/relayout_spec.h"

#include <fmt/format.h>

#include "ingot/codegen/types/spec_hash.h"
#include "ingot/codegen/types/spec_reader.h"

namespace ingot {

std::string print_spec(const RelayoutSpec& spec) { return spec.transposed ? "relayout transposed" : "relayout copied"; }

void validate_spec(const RelayoutSpec&) {}

std::uint64_t hash_spec(const RelayoutSpec& spec) { return mix(seed<RelayoutSpec>() + pack(spec.transposed)); }

void read_spec(const SpecReader& reader, RelayoutSpec& spec) {
  constexpr const char* kForm = "copied or transposed";
  reader.require_words(2, kForm);
  const std::string& word = reader.word(1);
  if (word != "copied" && word != "transposed") reader.fail(fmt::format("\"{}\" must be {}", word, kForm));
  spec.transposed = word == "transposed";
  reader.no_options(2, "nothing more");
}

void list_valid(std::vector<RelayoutSpec>& specs) { specs.assign({{.transposed = false}, {.transposed = true}}); }

}  // namespace ingot
