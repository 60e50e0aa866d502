// What the commands share where they register with CLI11: the names of values, help, and the one line that a wrong
// command line gets, which says what is wrong with it and where to read on.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "ingot/runtime/util/error.h"

namespace ingot::tools {

// What help says that an option takes.
inline constexpr const char* kFileValue = "FILE";
inline constexpr const char* kModelValue = "MODEL";
inline constexpr const char* kRecipeValue = "RECIPE";
inline constexpr const char* kTargetValue = "ARCHITECTURE";
inline constexpr const char* kWeightValue = "FORMAT";  // of weights that a matmul decodes
inline constexpr const char* kDtypeValue = "DTYPE";    // of activations

// "llama2-7b, llama2-70b, ..."
std::string model_names();

// CLI11's help, but --help-all also opens the commands within commands.
class HelpFormatter : public CLI::Formatter {
 public:
  std::string make_subcommands(const CLI::App* app, CLI::AppFormatMode mode) const override {
    return CLI::Formatter::make_subcommands(app, mode == CLI::AppFormatMode::Sub ? CLI::AppFormatMode::All : mode);
  }
};

// "$UNSET" must not be taken for an option that is not given: an empty name of a file is refused. For all commands.
void refuse_empty_names(CLI::App& app);

// The commands of the program, or of one of its commands: "info, show, tune or warm".
std::string command_names(const CLI::App& app);

std::string usage_error(const CLI::App& program, const CLI::ParseError& error);

// Is it a UsageError, or an error of the library about an option's value ("--set: ...")?
bool is_usage_error(const Error& error);

}  // namespace ingot::tools
