// A whole file at once.
#pragma once

#include <filesystem>
#include <initializer_list>
#include <string_view>

namespace ingot {

// The parts, one after the other, in place of what was there. Throws Error{io_failed}.
void write_file(const std::filesystem::path& file, std::initializer_list<std::string_view> parts);

}  // namespace ingot
