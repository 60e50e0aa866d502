// Opens files that this process will act on although another program wrote them: machine code, in bundles and in other
// users' stores. They are used only if nobody but root and the current user can have written them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "ingot/runtime/util/file_descriptor.h"

struct stat;

namespace ingot {

// Why a file or directory must not be trusted ("is owned by user 1000; expected root or 0"), or empty.
std::string distrust_owner(const struct stat& state);

struct TrustedFile {
  FileDescriptor file{};
  std::int64_t bytes = 0;
};

// A regular file of root or the current user that no group and no other user can write. Follows links: what counts is
// the file. Never waits for a FIFO. Without a file, `problem` says why ("cannot be opened: ..."), or is empty where
// there is none of this name.
TrustedFile open_trusted(const std::filesystem::path& path, std::string& problem);

// Reads `bytes` bytes at `offset`, or fewer where the file ends or cannot be read.
std::string read_at(const FileDescriptor& file, std::int64_t offset, std::size_t bytes);

}  // namespace ingot
