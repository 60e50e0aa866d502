// Rewrites FP8 codes in the order that kernel gemm_sm90 reads: the first step of a GEMM with staged operands.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ingot/api.h"
#include "ingot/codegen/types/pass.h"

namespace ingot {

class SpecReader;
struct TemplateInstance;

// The same codes, of any FP8 dtype, in rows that start at multiples of 16 bytes: copied or transposed.
struct RelayoutSpec {
  static constexpr std::string_view kWord = "relayout";
  bool transposed = false;
  bool operator==(const RelayoutSpec&) const = default;
};

// The functions that kernel_spec.h and generate.h call for every spec.
std::string print_spec(const RelayoutSpec& spec);
void validate_spec(const RelayoutSpec& spec);
INGOT_API std::uint64_t hash_spec(const RelayoutSpec& spec);
void read_spec(const SpecReader& reader, RelayoutSpec& spec);
INGOT_API void list_valid(std::vector<RelayoutSpec>& specs);
ExtraPasses extra_passes(const RelayoutSpec& spec);
TemplateInstance template_instance(const RelayoutSpec& spec, Pass pass);

}  // namespace ingot
