// Makes text from a file safe to quote in a message.
#pragma once

#include <string>
#include <string_view>

namespace ingot {

// The text cut to one or two lines of a terminal, with "?" for each byte that is not printable ASCII.
std::string printable(std::string_view text);

}  // namespace ingot
