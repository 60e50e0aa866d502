// Recordings on disk (codegen/recording.h): a run appends lines to one (recorder.h); these read and write whole files.
#pragma once

#include <filesystem>
#include <string>

#include "ingot/api.h"
#include "ingot/codegen/recording.h"

namespace ingot {

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
// Replaces the file. Throws Error{io_failed}.
INGOT_API void write_recording(const std::filesystem::path& file, const Recording& recording);

}  // namespace ingot
