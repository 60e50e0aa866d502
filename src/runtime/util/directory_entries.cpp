#include "ingot/runtime/util/directory_entries.h"

#include <dirent.h>
#include <fcntl.h>

#include <memory>
#include <utility>

#include "ingot/runtime/util/uninterrupted.h"

namespace ingot {

FileDescriptor open_directory(int at, const char* name) {
  return FileDescriptor(
      uninterrupted([&] { return openat(at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC); }));
}

std::vector<DirectoryEntry> entries_of(const FileDescriptor& directory) {
  std::vector<DirectoryEntry> entries;
  FileDescriptor copy = open_directory(directory.get(), ".");
  if (!copy) return entries;
  const auto close = [](DIR* stream) { closedir(stream); };
  const std::unique_ptr<DIR, decltype(close)> stream(fdopendir(copy.get()), close);
  if (!stream) return entries;
  copy.release();  // the stream's now
  while (const dirent* item = readdir(stream.get())) {
    DirectoryEntry entry{.name = item->d_name};
    if (entry.name == "." || entry.name == "..") continue;
    if (fstatat(directory.get(), item->d_name, &entry.state, AT_SYMLINK_NOFOLLOW) == 0) {
      entries.push_back(std::move(entry));
    }
  }
  return entries;
}

std::optional<std::time_t> birth_of(const FileDescriptor& directory, const std::string& name) {
  struct statx state {};
  if (statx(directory.get(), name.c_str(), AT_SYMLINK_NOFOLLOW, STATX_BTIME, &state) != 0) return std::nullopt;
  if ((state.stx_mask & STATX_BTIME) == 0) return std::nullopt;
  return static_cast<std::time_t>(state.stx_btime.tv_sec);
}

}  // namespace ingot
