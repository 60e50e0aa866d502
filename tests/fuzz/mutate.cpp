#include "fuzz/mutate.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace ingot::fuzz {

std::string Mutator::next() {
  std::string text = seeds_[below(seeds_.size())];
  for (std::size_t changes = 1 + below(8); changes > 0; --changes) change(text);
  return text;
}

// A part of any seed, up to 40 bytes.
std::string Mutator::piece() {
  const std::string& from = seeds_[below(seeds_.size())];
  return from.substr(below(from.size()), 1 + below(40));
}

void Mutator::change(std::string& text) {
  constexpr std::array<std::string_view, 16> kTokens{"\"",   "{",       "}",    "[",     "]",  ",",
                                                     ":",    "(",       ")",    "1e999", "-1", "9223372036854775808",
                                                     "null", "\\u0000", "\xff", " "};
  constexpr std::array<std::uint64_t, 8> kNumbers{0,     1,          0x7FFFFFFF, 0xFFFFFFFF, std::uint64_t{1} << 62,
                                                  ~0ULL, ~0ULL >> 1, 0x100};
  const std::size_t at = below(text.size() + 1);
  switch (below(9)) {
    case 0:
      if (at < text.size()) text[at] = static_cast<char>(text[at] ^ (1 << below(8)));
      break;
    case 1:
      if (at < text.size()) text[at] = static_cast<char>(random_());
      break;
    case 2: text.erase(at, 1 + below(16)); break;
    case 3: text.insert(at, piece()); break;
    case 4: text.replace(at, below(16), piece()); break;
    case 5: text.insert(at, kTokens.at(below(kTokens.size()))); break;
    case 6: {  // a length or an offset
      const std::uint64_t number = kNumbers.at(below(kNumbers.size()));
      if (text.size() >= at + sizeof(number)) std::memcpy(text.data() + at, &number, sizeof(number));
      break;
    }
    case 7: text.resize(at); break;
    default:
      if (at < text.size()) text.insert(at, std::string(below(300), text[at]));
      break;
  }
}

}  // namespace ingot::fuzz
