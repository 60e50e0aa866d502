// Walks over the lines of a text.
#pragma once

#include <algorithm>
#include <string_view>

namespace ingot {

// Takes the first line off the text and returns it without its end.
inline std::string_view take_line(std::string_view& text) {
  const std::string_view line = text.substr(0, text.find('\n'));
  text.remove_prefix(std::min(line.size() + 1, text.size()));
  return line;
}

}  // namespace ingot
