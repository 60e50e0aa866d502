#include "ingot/codegen/types/spec_words.h"

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

}  // namespace ingot
