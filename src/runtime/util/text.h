// Text that is safe to quote in a message; lines, and lines of JSON with a checksum; today's date.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>

namespace ingot {

// Of a file, a name or a variable: the text cut to one or two lines of a terminal, with "?" for each byte that is not
// printable ASCII.
std::string printable(std::string_view text);

// The whole text with "?" for each byte of a control character but a new line and a tab, those of Unicode (C2 80 to
// C2 9F) too, and for each byte that is no part of UTF-8, which Python could not make a message of. Each byte stays one
// byte.
std::string without_controls(std::string text);

// Takes the first line off the text and returns it without its end.
inline std::string_view take_line(std::string_view& text) {
  const std::string_view line = text.substr(0, text.find('\n'));
  text.remove_prefix(std::min(line.size() + 1, text.size()));
  return line;
}

// Lines of JSON that carry their own checksum: the last field of each object hashes all text before it, so that a
// truncated or changed line is detected before anything in it is used.
//
//   {...,"checksum":"<32 hex: XXH3-128 of all before the comma>"}
//
// Appends the checksum to the text of an object with at least one field.
std::string with_checksum(std::string object);

// Empty if the line is as with_checksum() made it; otherwise what is wrong: "is truncated", "does not match its
// checksum" ...
std::string checksum_fault(std::string_view line);

std::string today();  // UTC, "2026-11-21"

}  // namespace ingot
