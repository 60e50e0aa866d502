// CLI11's help, but --help-all also opens the commands within commands.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace ingot::tools {

class HelpFormatter : public CLI::Formatter {
 public:
  std::string make_subcommands(const CLI::App* app, CLI::AppFormatMode mode) const override {
    return CLI::Formatter::make_subcommands(app, mode == CLI::AppFormatMode::Sub ? CLI::AppFormatMode::All : mode);
  }
};

}  // namespace ingot::tools
