// Environment variables, for programs of every kind: a setuid program, or one that runs with capabilities that its
// caller lacks, must take neither libraries nor files from that caller, so there every variable counts as unset.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace ingot {

// An empty variable counts as unset too.
std::optional<std::string> environment(const char* name);

// A path. Only a shell expands "~", and not in quotes or after a colon: here "~/..." is in the folder that HOME names.
// Throws Error{invalid_argument} where there is none, and for another user's "~name".
std::optional<std::filesystem::path> environment_path(const char* name);
// A path of that variable's value.
std::filesystem::path expand_home(const char* name, const std::string& path);

}  // namespace ingot
