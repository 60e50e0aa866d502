// What a wrong command line gets: one line that says what is wrong with it and where to read on.
#pragma once

#include <string>
#include <utility>

#include "ingot/runtime/error.h"

namespace CLI {
class App;
class ParseError;
}  // namespace CLI

namespace ingot::tools {

// The commands of the program, or of one of its commands: "info, show, tune or warm".
std::string command_names(const CLI::App& app);

std::string usage_error(const CLI::App& program, const CLI::ParseError& error);

// A value on the command line that cannot be: the program ends with 2.
class UsageError : public Error {
 public:
  UsageError(std::string subject, const std::string& message)
      : Error(ErrorCode::invalid_argument, std::move(subject), message) {}
};

// Is it one, or an error of the library about an option's value ("--set: ...")?
bool is_usage_error(const Error& error);

// read() of a value of the command line: an Error that it throws becomes a UsageError.
template <class Read>
auto read_argument(const Read& read) {
  try {
    return read();
  } catch (const Error& error) {
    throw UsageError(error.subject(), error.message());
  }
}

}  // namespace ingot::tools
