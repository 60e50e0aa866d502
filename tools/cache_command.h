// The command line of `ingot cache`.
#pragma once

#include <CLI/CLI.hpp>

#include "cache.h"

namespace ingot::tools {

// The command that runs writes its exit code to `status`.
void add_cache(CLI::App& app, CacheOptions& options, int& status);

}  // namespace ingot::tools
