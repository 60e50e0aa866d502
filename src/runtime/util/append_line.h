// Appends a line to a file that other processes append to as well.
#pragma once

#include <filesystem>
#include <string>

namespace ingot {

// In one write, so that lines of several processes do not mix; on its own line, even after one that is torn. The file
// is created if there is none. Empty, or why it failed.
std::string append_line(const std::filesystem::path& path, const std::string& text);

}  // namespace ingot
