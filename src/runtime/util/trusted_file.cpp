// Files are read with pread, never mapped: if someone truncates a mapped file, the process that reads it is killed.
#include "ingot/runtime/util/trusted_file.h"
#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cerrno>
#include <memory>
#include <system_error>
#include <utility>
#include "ingot/runtime/util/file_descriptor.h"

namespace ingot {

std::string distrust(const struct stat& state, TrustedOwner allowed) {
  std::string problem = foreign_owner(state, allowed);
  return problem.empty() ? other_writers(state) : problem;
}

std::string foreign_owner(const struct stat& state, TrustedOwner allowed) {
  const bool roots_too = allowed == TrustedOwner::root_too;
  if (state.st_uid == geteuid() || (roots_too && state.st_uid == 0)) return {};
  if (geteuid() == 0) return fmt::format("is owned by user {}; expected root, the current user", state.st_uid);
  return fmt::format("is owned by user {}; expected {}{}, the current user", state.st_uid, roots_too ? "root or " : "",
                     geteuid());
}

std::string other_writers(const struct stat& state) {
  if ((state.st_mode & (S_IWGRP | S_IWOTH)) == 0) return {};
  return fmt::format("can be written by other users (mode {:04o})", state.st_mode & 07777U);
}

TrustedFile open_trusted(const std::filesystem::path& path, std::string& problem) {
  const auto message = [] { return std::system_category().message(errno); };
  constexpr int kFlags = O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC;
  TrustedFile opened{.file = FileDescriptor(uninterrupted([&] { return ::open(path.c_str(), kFlags); }))};
  if (!opened.file) {
    problem = errno == ENOENT ? "" : "cannot be opened: " + message();
    return {};
  }
  struct stat state {};
  if (fstat(opened.file.get(), &state) != 0) {
    problem = "cannot be read: " + message();
  } else if (!S_ISREG(state.st_mode)) {
    problem = "is not a regular file";
  } else {
    problem = distrust(state, TrustedOwner::root_too);
  }
  if (!problem.empty()) return {};
  opened.bytes = state.st_size;
  return opened;
}

std::string read_at(const FileDescriptor& file, std::int64_t offset, std::size_t bytes) {
  std::string content(bytes, '\0');
  std::size_t done = 0;
  while (done < bytes) {
    const off_t at = offset + static_cast<off_t>(done);
    const ssize_t got = uninterrupted([&] { return pread(file.get(), content.data() + done, bytes - done, at); });
    if (got <= 0) break;
    done += static_cast<std::size_t>(got);
  }
  content.resize(done);
  return content;
}

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
