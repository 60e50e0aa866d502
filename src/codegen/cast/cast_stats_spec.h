// Statistics of what a cast did to its values, for monitoring.
#pragma once

#include <cstdint>
#include <optional>
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

// The counts and sums of CastStats (runtime/cast/cast_tensors.h): they compare values x[rows, cols] of `in` with what a
// cast made of them, codes[rows, cols] of `out` (or [cols, rows] if transposed) and their scale_inv. `scale` is the
// granularity of the scale_inv, in terms of x. Without `out` they are statistics of the values alone.
struct CastStatsSpec {
  static constexpr std::string_view kWord = "cast_stats";
  Dtype in = Dtype::bf16;
  std::optional<Dtype> out{};
  ScaleGranularity scale = kTensorwise;
  bool transposed = false;
  bool operator==(const CastStatsSpec&) const = default;
};

// The functions that kernel_spec.h and generate.h call for every spec.
std::string print_spec(const CastStatsSpec& spec);
void validate_spec(const CastStatsSpec& spec);
INGOT_API std::uint64_t hash_spec(const CastStatsSpec& spec);
void read_spec(const SpecReader& reader, CastStatsSpec& spec);
INGOT_API void list_valid(std::vector<CastStatsSpec>& specs);
ExtraPasses extra_passes(const CastStatsSpec& spec);
TemplateInstance template_instance(const CastStatsSpec& spec, Pass pass);

}  // namespace ingot
