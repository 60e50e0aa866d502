// The commands of the program `ingot`. Each is registered with CLI11 here and runs when the command line is parsed: it
// prints to stdout and throws ingot::Error if it fails. One that can also end in another way writes its exit code to
// `status`.
#pragma once

#include <CLI/CLI.hpp>

namespace ingot::tools {

void add_info(CLI::App& app);
void add_show(CLI::App& app);
void add_tune(CLI::App& app, int& status);
void add_warm(CLI::App& app, int& status);
void add_plan(CLI::App& app);
void add_bench(CLI::App& app);
void add_cache(CLI::App& app, int& status);

}  // namespace ingot::tools
