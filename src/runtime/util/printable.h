// Text that comes from a file, in a message.
#pragma once

#include <string>
#include <string_view>

namespace ingot {

// So much of it as fits a line of a terminal or two, in letters: "?" for each byte that is no printable ASCII.
std::string printable(std::string_view text);

}  // namespace ingot
