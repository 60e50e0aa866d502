#include "ingot/runtime/jit/recorder.h"
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <mutex>
#include <string>
#include <system_error>
#include <utility>
#include "ingot/runtime/util/error.h"
#include "ingot/runtime/util/file_descriptor.h"
#include "ingot/runtime/util/read_file.h"
#include "ingot/runtime/util/signals.h"
#include "ingot/runtime/util/text.h"

namespace ingot {
namespace {

bool ends_inside_a_line(int file) {
  const off_t size = ::lseek(file, 0, SEEK_END);
  char last = '\n';
  return size > 0 && ::pread(file, &last, 1, size - 1) == 1 && last != '\n';
}

// In one write, so that lines of several processes do not mix; on its own line, even after one that is torn. The file
// is created if there is none. Empty, or why it failed.
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

std::size_t count(const Recording& recording, const KernelSpec&) { return recording.kernels().size(); }
std::size_t count(const Recording& recording, const MatmulCall&) { return recording.matmuls().size(); }

}  // namespace

Recorder::Recorder(std::filesystem::path file, Warn warn, std::size_t most)
    : file_(std::move(file)), warn_(std::move(warn)), most_(most) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(file_, error)) return;
  try {
    RecordingFile there = read_recording(file_);
    in_file_ = std::move(there.recording);
    if (there.damaged > 0) warn_once(there.problem);
  } catch (const Error& problem) {
    warn_once(fmt::format("recording {}", problem.what()));
  }
}

void Recorder::note(const KernelSpec& kernel) { add(kernel); }

void Recorder::note(const MatmulSpec& matmul, const MatmulSize& size) {
  if (size.m > 0 && size.n > 0 && size.k > 0) add(MatmulCall{.spec = without_kernel(matmul), .size = size});
}

Recording Recorder::recording() const {
  const std::lock_guard lock(mutex_);
  return recording_;
}

template <class Noted>
void Recorder::add(const Noted& noted) {
  bool is_full = false;
  {
    const std::lock_guard lock(mutex_);
    if (recording_.has(noted)) return;
    is_full = count(recording_, noted) >= most_;
    if (!is_full) recording_.add(noted);
    if (file_.empty() || in_file_.has(noted)) return;
    is_full = is_full || count(in_file_, noted) >= most_;
    if (!is_full) in_file_.add(noted);
  }
  if (is_full) {
    return warn_once(
        fmt::format("recording {}: has at most {} kernels and as many matmuls, so the rest is not noted; pad "
                    "sizes so that fewer differ",
                    file_.string(), most_));
  }
  const std::string problem = append_line(file_, print(noted));
  if (!problem.empty()) warn_once(fmt::format("recording {} cannot be written: {}", file_.string(), problem));
}

void Recorder::warn_once(const std::string& text) {
  {
    const std::lock_guard lock(mutex_);
    if (warned_) return;
    warned_ = true;
  }
  if (warn_) warn_(text);
}

namespace {

constexpr std::uint64_t kMostBytes = std::uint64_t{64} << 20U;

ParsedRecording parse_file(const std::filesystem::path& file) {
  return parse_recording(read_file(file, kMostBytes, "a run with INGOT_RECORD set to this path records one there"));
}

RecordingFile describe(const std::filesystem::path& file, ParsedRecording parsed) {
  RecordingFile read{.recording = std::move(parsed.recording), .damaged = parsed.damaged, .problem = {}};
  if (parsed.damaged > 0) {
    read.problem = fmt::format("recording {}: {} {} ignored; {}", file.string(), parsed.damaged,
                               parsed.damaged == 1 ? "damaged line is" : "damaged lines are", printable(parsed.first));
  }
  return read;
}

}  // namespace

RecordingFile read_recording(const std::filesystem::path& file) { return describe(file, parse_file(file)); }

RecordingFile read_usable_recording(const std::filesystem::path& file) {
  ParsedRecording parsed = parse_file(file);
  if (parsed.recording.empty() && parsed.damaged > 0) {
    throw Error(
        ErrorCode::invalid_argument, file.string(),
        fmt::format("is no recording: none of its lines ({}) can be read; {}; a run with INGOT_RECORD makes one",
                    parsed.damaged, printable(parsed.first)));
  }
  return describe(file, std::move(parsed));
}

}  // namespace ingot
