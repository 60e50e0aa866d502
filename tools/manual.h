// Man pages in roff, written from what the program registers and from the notes beside it.
#pragma once

#include <string>

#include "command_tree.h"

namespace ingot::tools {

// The page of the program itself (`command` is `program`) or of one of its commands, with all that are nested in it.
std::string manual_page(const CommandText& program, const CommandText& command, const std::string& version);

}  // namespace ingot::tools
