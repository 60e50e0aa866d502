#include "ingot/runtime/util/append_line.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "ingot/runtime/util/file_descriptor.h"
#include "ingot/runtime/util/file_size_signal.h"
#include "ingot/runtime/util/uninterrupted.h"

namespace ingot {
namespace {

bool ends_inside_a_line(int file) {
  const off_t size = ::lseek(file, 0, SEEK_END);
  char last = '\n';
  return size > 0 && ::pread(file, &last, 1, size - 1) == 1 && last != '\n';
}

}  // namespace

std::string append_line(const std::filesystem::path& path, const std::string& text) {
  const auto because_of = [](int error) { return std::system_category().message(error); };
  // O_NONBLOCK: a FIFO that nobody reads must not stop the program.
  constexpr int kFlags = O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK | O_NOCTTY;
  // Opened for reading too, a FIFO would be its own reader, and lose the line.
  struct stat state {};
  const bool is_fifo = ::stat(path.c_str(), &state) == 0 && S_ISFIFO(state.st_mode);
  FileDescriptor file(
      uninterrupted([&] { return ::open(path.c_str(), kFlags | (is_fifo ? O_WRONLY : O_RDWR), 0644); }));
  if (!file) return is_fifo && errno == ENXIO ? "nothing reads from this FIFO" : because_of(errno);
  const std::string line = fmt::format("{}{}\n", ends_inside_a_line(file.get()) ? "\n" : "", text);
  const FileSizeSignal ignored;
  const ssize_t written = uninterrupted([&] { return ::write(file.get(), line.data(), line.size()); });
  if (written < 0) return because_of(errno);
  if (written < static_cast<ssize_t>(line.size())) {
    return fmt::format("only {} of a line's {} bytes fit", written, line.size());
  }
  return file.close() ? "" : because_of(errno);
}

}  // namespace ingot
