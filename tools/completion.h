// Scripts with which bash and zsh complete the program's command line, written from what it registers.
#pragma once

#include <string>

#include "command_tree.h"

namespace ingot::tools {

std::string bash_completion(const CommandText& program);
std::string zsh_completion(const CommandText& program);

}  // namespace ingot::tools
