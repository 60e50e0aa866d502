// What a wrong command line gets: one line that says what is wrong with it and where to read on.
#pragma once

#include <string>

namespace CLI {
class App;
class ParseError;
}  // namespace CLI

namespace ingot::tools {

// The commands of the program, or of one of its commands: "info, show, tune or warm".
std::string command_names(const CLI::App& app);

std::string usage_error(const CLI::App& program, const CLI::ParseError& error);

}  // namespace ingot::tools
