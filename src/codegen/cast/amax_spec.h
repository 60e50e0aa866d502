// Maxima of absolute values, from which scales are computed.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ingot/api.h"
#include "ingot/codegen/types/dtype.h"
#include "ingot/codegen/types/granularity.h"
#include "ingot/codegen/types/pass.h"

namespace ingot {

class SpecReader;
struct TemplateInstance;

// amax[i] = max |x| over the i-th extent of x[rows, cols]; NaN is kept. The result is f32.
struct AmaxSpec {
  static constexpr std::string_view kWord = "amax";
  Dtype in = Dtype::bf16;
  ScaleGranularity scale = kTensorwise;
  bool operator==(const AmaxSpec&) const = default;
};

// The functions that kernel_spec.h and generate.h call for every spec.
std::string print_spec(const AmaxSpec& spec);
void validate_spec(const AmaxSpec& spec);
INGOT_API std::uint64_t hash_spec(const AmaxSpec& spec);
void read_spec(const SpecReader& reader, AmaxSpec& spec);
INGOT_API void list_valid(std::vector<AmaxSpec>& specs);
ExtraPasses extra_passes(const AmaxSpec& spec);
TemplateInstance template_instance(const AmaxSpec& spec, Pass pass);

}  // namespace ingot
