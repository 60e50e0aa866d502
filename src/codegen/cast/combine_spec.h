// The spec of combine, which sums the rows that belong to one token, as a mixture of experts does with its outputs.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ingot/api.h"
#include "ingot/codegen/types/dtype.h"
#include "ingot/codegen/types/pass.h"

namespace ingot {

class SpecReader;
struct TemplateInstance;

// output[t] = the sum over j of input[index[t, j]], in f32 from 0 in the order of j, rounded once.
struct CombineSpec {
  static constexpr std::string_view kWord = "combine";
  Dtype in = Dtype::bf16;  // of both
  bool operator==(const CombineSpec&) const = default;
};

// The functions that kernel_spec.h and generate.h call for every spec.
std::string print_spec(const CombineSpec& spec);
void validate_spec(const CombineSpec& spec);
INGOT_API std::uint64_t hash_spec(const CombineSpec& spec);
void read_spec(const SpecReader& reader, CombineSpec& spec);
INGOT_API void list_valid(std::vector<CombineSpec>& specs);
ExtraPasses extra_passes(const CombineSpec& spec);
TemplateInstance template_instance(const CombineSpec& spec, Pass pass);

}  // namespace ingot
