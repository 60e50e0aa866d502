#include "ingot/runtime/jit/recording_file.h"

#include <fmt/format.h>

#include <cstdint>
#include <utility>

#include "ingot/runtime/error.h"
#include "ingot/runtime/util/printable.h"
#include "ingot/runtime/util/read_file.h"
#include "ingot/runtime/util/write_file.h"

namespace ingot {
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

void write_recording(const std::filesystem::path& file, const Recording& recording) {
  write_file(file, {print(recording)});
}

}  // namespace ingot
