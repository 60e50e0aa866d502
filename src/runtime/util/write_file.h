// Writes a whole file in one call.
#pragma once

#include <filesystem>
#include <initializer_list>
#include <string_view>

namespace ingot {

// Replaces the file's content with these parts, one after the other. Throws Error{io_failed}.
void write_file(const std::filesystem::path& file, std::initializer_list<std::string_view> parts);

}  // namespace ingot
