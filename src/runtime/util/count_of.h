// Numbers of things in messages: "1 layer", "2 layers".
#pragma once

#include <concepts>
#include <string>
#include <string_view>

namespace ingot {

// `one`: the word of a single one, whose plural has an s.
template <std::integral Count>
std::string count_of(Count count, std::string_view one) {
  std::string text = std::to_string(count) + " ";
  text += one;
  if (count != 1) text += 's';
  return text;
}

}  // namespace ingot
