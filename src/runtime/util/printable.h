// Makes text from a file, a name or a variable safe to quote in a message.
#pragma once

#include <string>
#include <string_view>

namespace ingot {

// The text cut to one or two lines of a terminal, with "?" for each byte that is not printable ASCII.
std::string printable(std::string_view text);

// The whole text with "?" for each byte of a control character but a new line and a tab, those of Unicode (C2 80 to
// C2 9F) too, and for each byte that is no part of UTF-8, which Python could not make a message of. Each byte stays one
// byte.
std::string without_controls(std::string text);

}  // namespace ingot
