#include "ingot/codegen/types/target.h"

#include <charconv>

namespace ingot {

std::string print(Target target) {
  return "sm_" + std::to_string(target.major) + std::to_string(target.minor) + (target.arch_specific ? "a" : "");
}

// The last digit is the minor version: sm_90a is 9.0, sm_121 is 12.1.
std::optional<Target> parse_target(std::string_view text) {
  constexpr std::string_view kPrefix = "sm_";
  if (!text.starts_with(kPrefix)) return std::nullopt;
  text.remove_prefix(kPrefix.size());
  const bool arch_specific = text.ends_with('a');
  if (arch_specific) text.remove_suffix(1);
  if (text.size() < 2 || text.size() > 3 || text.front() == '0') return std::nullopt;
  int number = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc{} || stop != end || number < 10) return std::nullopt;
  return Target{number / 10, number % 10, arch_specific};
}

}  // namespace ingot
