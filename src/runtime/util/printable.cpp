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

std::string without_controls(std::string text) {
  const auto at = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  for (std::size_t i = 0; i < text.size(); ++i) {
    if ((at(i) < ' ' && text[i] != '\n' && text[i] != '\t') || at(i) == 0x7f) text[i] = '?';
    if (at(i) == 0xc2 && i + 1 < text.size() && at(i + 1) >= 0x80 && at(i + 1) < 0xa0) text[i] = text[i + 1] = '?';
  }
  return text;
}

}  // namespace ingot
