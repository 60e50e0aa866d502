#include "ingot/runtime/jit/recording_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <system_error>
#include <utility>

#include "ingot/runtime/error.h"
#include "ingot/runtime/util/file_descriptor.h"
#include "ingot/runtime/util/printable.h"
#include "ingot/runtime/util/write_file.h"

namespace ingot {
namespace {

constexpr std::size_t kMostBytes = std::size_t{64} << 20U;

[[noreturn]] void fail(const std::filesystem::path& path, const std::string& message) {
  throw Error(ErrorCode::io_failed, path.string(), message);
}

[[noreturn]] void fail_to_read(const std::filesystem::path& path, int error) {
  fail(path, fmt::format("cannot be read: {}", std::system_category().message(error)));
}

// (Opening a FIFO would wait for its writer.)
FileDescriptor open_regular(const std::filesystem::path& path, const std::string& what) {
  FileDescriptor file(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  if (!file) {
    if (errno != ENOENT) fail_to_read(path, errno);
    throw Error(
        ErrorCode::not_found, path.string(),
        fmt::format("there is no such {}; a run with INGOT_RECORD or INGOT_GEMM_MANIFEST set to this path records one",
                    what));
  }
  struct stat about {};
  if (::fstat(file.get(), &about) != 0) fail_to_read(path, errno);
  if (!S_ISREG(about.st_mode)) fail(path, fmt::format("is no regular file; name a file that holds a {}", what));
  return file;
}

std::string read_all(const std::filesystem::path& path, int file, const std::string& what) {
  std::string text;
  for (;;) {
    constexpr std::size_t kChunk = std::size_t{1} << 20U;
    const std::size_t before = text.size();
    if (before > kMostBytes) {
      fail(path,
           fmt::format("has more than {} bytes and is no {}; name a file that a run has recorded", kMostBytes, what));
    }
    text.resize(before + kChunk);
    const ssize_t count = ::read(file, text.data() + before, kChunk);
    if (count < 0 && errno != EINTR) fail_to_read(path, errno);
    text.resize(before + static_cast<std::size_t>(count < 0 ? 0 : count));
    if (count == 0) return text;
  }
}

}  // namespace

RecordingFile read_recording(const std::filesystem::path& file, const std::string& what) {
  const FileDescriptor opened = open_regular(file, what);
  ParsedRecording parsed = parse_recording(read_all(file, opened.get(), what));
  RecordingFile read{.recording = std::move(parsed.recording), .damaged = parsed.damaged, .problem = {}};
  if (parsed.damaged > 0) {
    read.problem = fmt::format("{} {}: {} {} ignored; {}", what, file.string(), parsed.damaged,
                               parsed.damaged == 1 ? "damaged line is" : "damaged lines are", printable(parsed.first));
  }
  return read;
}

void write_recording(const std::filesystem::path& file, const Recording& recording) {
  write_file(file, {print(recording)});
}

}  // namespace ingot
