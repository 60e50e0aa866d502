// Opens files that this process will act on although another program wrote them: machine code, in bundles and in other
// users' stores. They are used only if nobody but root and the current user can have written them. Lists directories,
// without following links.
#pragma once

#include <sys/stat.h>
#include <cstdint>
#include <ctime>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>
#include "ingot/runtime/util/file_descriptor.h"

namespace ingot {

// Whose files are trusted: this user's alone, as in a store that is written, or root's as well.
enum class TrustedOwner : std::uint8_t { current_user, root_too };

// Why a file or directory must not be trusted, in words that follow its name; empty if it may be. It has another owner:
// "is owned by user 1234; expected root or 1000, the current user"
std::string foreign_owner(const struct stat& state, TrustedOwner allowed);
// Why others than its owner may change it: "can be written by other users (mode 0666)"; empty if they may not.
std::string other_writers(const struct stat& state);
// foreign_owner()'s answer, or if there is none other_writers()'s.
std::string distrust(const struct stat& state, TrustedOwner allowed);

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

struct DirectoryEntry {
  std::string name;
  struct stat state {};
};

// Empty, with errno set, if there is no such directory or `name` is a link. `at`: an open directory, or AT_FDCWD.
FileDescriptor open_directory(int at, const char* name);

// All but "." and ".."; none if the directory cannot be read.
std::vector<DirectoryEntry> entries_of(const FileDescriptor& directory);

// When a file was made. Nothing where the file system does not keep that.
std::optional<std::time_t> birth_of(const FileDescriptor& directory, const std::string& name);

}  // namespace ingot
