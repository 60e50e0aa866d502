// Lists an open directory, without following links.
#pragma once

#include <sys/stat.h>

#include <ctime>
#include <optional>
#include <string>
#include <vector>

#include "ingot/runtime/util/file_descriptor.h"

namespace ingot {

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
