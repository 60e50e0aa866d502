#include "ingot/codegen/spec_words.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>
#include <vector>

namespace ingot {

std::string list(std::span<const Dtype> dtypes) {
  std::vector<std::string_view> names;
  for (const Dtype dtype : dtypes) names.push_back(name(dtype));
  return fmt::format("{}", fmt::join(names, ", "));
}

bool among(std::span<const Dtype> dtypes, Dtype dtype) { return std::ranges::find(dtypes, dtype) != dtypes.end(); }

std::string dtype_fault(const char* field, Dtype dtype, std::span<const Dtype> allowed) {
  if (among(allowed, dtype)) return "";
  return fmt::format("{} is {}, but must be one of {}", field, name(dtype), list(allowed));
}

}  // namespace ingot
