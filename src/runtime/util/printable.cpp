#include "ingot/runtime/util/printable.h"

#include <algorithm>

namespace ingot {

std::string printable(std::string_view text) {
  constexpr std::size_t kMost = 160;
  std::string letters(text.substr(0, kMost));
  if (text.size() > kMost) letters += "...";
  std::ranges::replace_if(
      letters, [](char c) { return c < ' ' || c > '~'; }, '?');
  return letters;
}

}  // namespace ingot
