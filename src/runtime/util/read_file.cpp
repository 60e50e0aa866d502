#include "ingot/runtime/util/read_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <new>
#include <stdexcept>
#include <system_error>

#include "ingot/runtime/util/error.h"
#include "ingot/runtime/util/file_descriptor.h"

namespace ingot {
namespace {

[[noreturn]] void fail(const std::filesystem::path& file, const std::string& message,
                       ErrorCode code = ErrorCode::io_failed) {
  throw Error(code, file.string(), message);
}

[[noreturn]] void fail_because(const std::filesystem::path& file, int error) {
  fail(file, "cannot be read: " + std::system_category().message(error));
}

FileDescriptor open_regular(const std::filesystem::path& file, std::uint64_t limit, std::string_view if_missing,
                            std::uint64_t& bytes) {
  // O_NONBLOCK: opening a FIFO that has no writer would wait. On a regular file it changes nothing.
  constexpr int kFlags = O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY;
  FileDescriptor descriptor(uninterrupted([&] { return ::open(file.c_str(), kFlags); }));
  if (!descriptor && (errno == ENOENT || errno == ENOTDIR)) {
    fail(file, fmt::format("there is no such file{}{}", if_missing.empty() ? "" : "; ", if_missing),
         ErrorCode::not_found);
  }
  if (!descriptor) fail_because(file, errno);
  struct stat status {};
  if (::fstat(descriptor.get(), &status) != 0) fail_because(file, errno);
  if (S_ISDIR(status.st_mode)) fail(file, "is a folder; name a file");
  if (!S_ISREG(status.st_mode)) fail(file, "is not a regular file; copy its content to one and name that");
  bytes = static_cast<std::uint64_t>(status.st_size);
  if (bytes > limit) fail(file, fmt::format("has {} bytes; at most {} are read", bytes, limit));
  return descriptor;
}

// Up to the end, wherever that is by now: a file may grow, and those of /proc have a size of 0.
std::string read_to_end(const std::filesystem::path& file, int descriptor, std::uint64_t expected,
                        std::uint64_t limit) {
  constexpr std::size_t kChunk = 1 << 16;
  std::string content(expected + 1, '\0');  // one more, to see the end without growing
  std::size_t done = 0;
  while (true) {
    const ssize_t got = uninterrupted([&] { return ::read(descriptor, content.data() + done, content.size() - done); });
    if (got < 0) fail_because(file, errno);
    if (got == 0) break;
    done += static_cast<std::size_t>(got);
    if (done > limit) fail(file, fmt::format("has more than {} bytes, which are the most that are read", limit));
    if (done == content.size()) content.resize(done + std::max(done, kChunk));
  }
  content.resize(done);
  return content;
}

}  // namespace

std::string read_file(const std::filesystem::path& file, std::uint64_t limit, std::string_view if_missing) {
  std::uint64_t bytes = 0;
  try {
    const FileDescriptor descriptor = open_regular(file, limit, if_missing, bytes);
    return read_to_end(file, descriptor.get(), bytes, limit);
  } catch (const std::bad_alloc&) {
    fail(file, fmt::format("has {} bytes, for which there is not enough memory", bytes), ErrorCode::out_of_memory);
  } catch (const std::length_error&) {
    fail(file, fmt::format("has {} bytes, for which there is not enough memory", bytes), ErrorCode::out_of_memory);
  }
}

}  // namespace ingot
