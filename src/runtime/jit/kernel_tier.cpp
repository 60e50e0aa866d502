#include "ingot/runtime/jit/kernel_tier.h"

#include <cstddef>

#include "ingot/runtime/util/text.h"

namespace ingot {

bool is_tuning_file(std::string_view name) {
  constexpr std::size_t kDigits = 32;
  return name.size() == kDigits + kTuningSuffix.size() && name.ends_with(kTuningSuffix) &&
         name.substr(0, kDigits).find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

std::string_view line_of_tuning_file(std::string_view content, std::string& problem) {
  if (content.ends_with('\n')) return content.substr(0, content.size() - 1);
  problem = "is truncated";
  return {};
}

void take_tuning_lines(std::string_view text, const TakeTuningLine& take) {
  for (int number = 1; !text.empty(); ++number) {
    const std::string_view line = take_line(text);
    if (!line.empty() && !take({.text = line, .place = "line " + std::to_string(number), .problem = {}})) return;
  }
}

}  // namespace ingot
