// Statistics of what a cast did to its values, for monitoring.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ingot/codegen/types/dtype.h"
#include "ingot/codegen/types/granularity.h"
#include "ingot/codegen/types/pass.h"

namespace ingot {

class SpecReader;
struct TemplateInstance;

// The counts and sums of CastStats (runtime/cast/cast_stats.h) for values x[rows, cols] of `in`, computed from the
// codes[rows, cols] (or [cols, rows] if transposed) and from factors of `scale`, in terms of x. Without `out`:
// statistics of the values alone.
struct CastStatsSpec {
  static constexpr std::string_view kWord = "cast_stats";
  Dtype in = Dtype::bf16;
  std::optional<Dtype> out{};
  ScaleGranularity scale = kTensorwise;
  bool transposed = false;
  bool operator==(const CastStatsSpec&) const = default;
};

// What kernel_spec.h and generate.h do with any spec.
std::string print_spec(const CastStatsSpec& spec);
void validate_spec(const CastStatsSpec& spec);
std::uint64_t hash_spec(const CastStatsSpec& spec);
void read_spec(const SpecReader& reader, CastStatsSpec& spec);
void list_valid(std::vector<CastStatsSpec>& specs);
ExtraPasses extra_passes(const CastStatsSpec& spec);
TemplateInstance template_instance(const CastStatsSpec& spec, Pass pass);

}  // namespace ingot
