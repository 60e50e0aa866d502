// Notes what a run asks for: the kernels that it uses, each at its first use, and its matmuls. It is called where
// kernels are looked up for the first time and plans are made, never on the way to a launch. With a file it also
// appends a line for each: processes may share the file, each line is one write, and what the file has already is not
// repeated by those that start later.
//
// It keeps the first kMostRecorded kernels and as many matmuls, and a file is given no more either, so that a program
// with ever new sizes needs no more memory with each step. What comes after them is not noted.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <string>
#include "ingot/api.h"
#include "ingot/codegen/recording.h"
#include "ingot/runtime/util/fork_mutex.h"

namespace ingot {

inline constexpr std::size_t kMostRecorded = 65536;

class INGOT_API Recorder {
 public:
  using Warn = std::function<void(const std::string&)>;

  // A file that cannot be read or written, that has damaged lines or is full only causes a warning, and only one.
  explicit Recorder(std::filesystem::path file = {}, Warn warn = {}, std::size_t most = kMostRecorded);

  // Thread-safe. A matmul whose sizes are not all above 0 is not noted.
  void note(const KernelSpec& kernel);
  void note(const MatmulSpec& matmul, const MatmulSize& size);

  // What this object has recorded; what was in the file before is not part of it.
  Recording recording() const;

 private:
  template <class Noted>
  void add(const Noted& noted);
  void warn_once(const std::string& text);

  std::filesystem::path file_;
  Warn warn_;
  std::size_t most_;
  mutable ForkMutex mutex_;  // guards the rest; not held while a file is written
  Recording recording_;
  Recording in_file_;
  bool warned_ = false;
};

// A recording on disk, read whole.
struct RecordingFile {
  Recording recording{};
  int damaged = 0;        // lines that could not be read, and were skipped
  std::string problem{};  // "recording <file>: 2 damaged lines are ignored; line 3: ..."; empty if there are none
};

// Throws Error{not_found, io_failed}; the latter also for what is no regular file, and for one of more than 64 MiB,
// which nobody has recorded.
INGOT_API RecordingFile read_recording(const std::filesystem::path& file);
// Reads a recording whose kernels are needed. Also throws Error{invalid_argument} if all of its lines are damaged.
INGOT_API RecordingFile read_usable_recording(const std::filesystem::path& file);

}  // namespace ingot
