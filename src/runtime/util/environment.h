// Environment variables, for programs of every kind: a setuid program, or one that runs with capabilities that its
// caller lacks, must take neither libraries nor files from that caller, so there every variable counts as unset.
#pragma once

#include <optional>
#include <string>

namespace ingot {

// An empty variable counts as unset too.
std::optional<std::string> environment(const char* name);

}  // namespace ingot
