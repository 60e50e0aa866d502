// Reads a whole file in one call. A path from a user may name anything: a folder, a FIFO that nobody writes to, a
// device without an end. Only regular files are read, so that no read waits or goes on for ever.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "ingot/api.h"

namespace ingot {

// Throws Error{not_found} if there is no such file, Error{io_failed} if it is not a regular file, has more than `limit`
// bytes or cannot be read, and Error{out_of_memory}. Each has the file as its subject. if_missing: the advice for a
// user whose file is not there, after "there is no such file".
INGOT_API std::string read_file(const std::filesystem::path& file, std::uint64_t limit,
                                std::string_view if_missing = {});

}  // namespace ingot
