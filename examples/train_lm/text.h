// The text to train on.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

namespace train_lm {

// The file's bytes; with an empty path, the King James Bible as the program `bible` of Debian's package bible-kjv
// prints it, without the references that it puts before each verse. Throws ingot::Error{not_found, io_failed}.
std::vector<std::uint8_t> load_text(const std::filesystem::path& file);

// The output of `command` without the first word of each line ("Ge1:1 "). Throws ingot::Error{not_found} if the command
// fails or prints less than 1 MB.
std::vector<std::uint8_t> verses_of(const char* command);

}  // namespace train_lm
