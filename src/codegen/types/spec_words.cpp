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

std::string dtype_fault(const char* field, Dtype dtype, std::span<const Dtype> allowed) {
  if (among(allowed, dtype)) return "";
  return fmt::format("{} is {}, but must be one of {}", field, name(dtype), list(allowed));
}

std::string options_fault(std::span<const std::string> words, std::size_t first, const char* form,
                          const TakeOption& take) {
  std::vector<std::string_view> seen;
  for (const std::string& word : words.subspan(first)) {
    const auto equals = word.find('=');
    const auto key = equals == std::string::npos ? std::string_view() : std::string_view(word).substr(0, equals);
    const auto value = equals == std::string::npos ? std::string_view() : std::string_view(word).substr(equals + 1);
    const char* const field = take(word, key, value);
    if (field == nullptr) return fmt::format("\"{}\" is no word of {}; expected {}", word, words.front(), form);
    if (std::ranges::find(seen, field) != seen.end()) {
      return fmt::format("\"{}\" gives {} a second time", word, field);
    }
    seen.emplace_back(field);
  }
  return "";
}

}  // namespace ingot
