// The commands `ingot man` and `ingot completion`: what a user reads and a shell completes, from the program itself.
#pragma once

#include <filesystem>
#include <string>

#include "command_tree.h"

namespace ingot::tools {

struct ManOptions {
  std::string command{};           // empty: the program
  std::filesystem::path folder{};  // not empty: all pages, as files
};
// At a terminal, a note on stderr tells how to read the page. Throws UsageError, Error{io_failed}.
void man(const CommandText& program, const ManOptions& options);

struct CompletionOptions {
  std::string shell{};
};
// Throws UsageError.
void completion(const CommandText& program, const CompletionOptions& options);

}  // namespace ingot::tools
