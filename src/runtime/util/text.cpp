#include "ingot/runtime/util/text.h"
#include <algorithm>
#include <array>
#include <cstddef>
#include <ctime>
#include "ingot/runtime/util/digest.h"

namespace ingot {
namespace {

bool is_control_byte(char c) { return (static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t') || c == '\x7f'; }

// The bytes of the character of UTF-8 that begins at `i`; 0 if none does: a stray, cut, overlong or surrogate one.
std::size_t character_at(std::string_view text, std::size_t i) {
  const auto byte = [&](std::size_t at) { return at < text.size() ? static_cast<unsigned char>(text[at]) : 0U; };
  const unsigned first = byte(i);
  if (first < 0x80) return 1;
  if (first < 0xc2 || first > 0xf4) return 0;
  const std::size_t length = first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
  for (std::size_t k = 1; k < length; ++k) {
    if ((byte(i + k) & 0xc0U) != 0x80) return 0;
  }
  const unsigned second = byte(i + 1);
  const bool is_overlong = (first == 0xe0 && second < 0xa0) || (first == 0xf0 && second < 0x90);
  const bool is_beyond = (first == 0xed && second >= 0xa0) || (first == 0xf4 && second >= 0x90);
  return is_overlong || is_beyond ? 0 : length;
}

}  // namespace

std::string printable(std::string_view text) {
  constexpr std::size_t kMost = 160;
  std::string letters(text.substr(0, kMost));
  if (text.size() > kMost) letters += "...";
  std::ranges::replace_if(
      letters, [](char c) { return c < ' ' || c > '~'; }, '?');
  return letters;
}

std::string without_controls(std::string text) {
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t length = character_at(text, i);
    const bool is_control = (length == 1 && is_control_byte(text[i])) ||
                            (length == 2 && text[i] == '\xc2' && static_cast<unsigned char>(text[i + 1]) < 0xa0);
    const std::size_t bytes = length == 0 ? 1 : length;
    if (length == 0 || is_control) std::fill_n(text.begin() + static_cast<std::ptrdiff_t>(i), bytes, '?');
    i += bytes;
  }
  return text;
}

namespace {

constexpr std::size_t kHexDigits = 2 * sizeof(Digest);
constexpr std::string_view kChecksum = ",\"checksum\":\"";
constexpr std::string_view kEnd = "\"}";

}  // namespace

std::string with_checksum(std::string object) {
  object.pop_back();
  const std::string checksum = print(digest(object));
  return object.append(kChecksum).append(checksum).append(kEnd);
}

std::string checksum_fault(std::string_view line) {
  constexpr std::size_t kTail = kChecksum.size() + kHexDigits + kEnd.size();
  if (line.size() < kTail || !line.ends_with(kEnd)) return "is truncated";
  const std::string_view hashed = line.substr(0, line.size() - kTail);
  const std::string_view tail = line.substr(hashed.size());
  if (!tail.starts_with(kChecksum)) return "has no checksum at its end";
  if (tail.substr(kChecksum.size(), kHexDigits) != print(digest(hashed))) return "does not match its checksum";
  return {};
}

std::string today() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  std::array<char, 16> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%d", &utc);
  return text.data();
}

}  // namespace ingot
