#include "ingot/runtime/tuning/tuning_file.h"

#include <fmt/format.h>

#include <cstdint>
#include <utility>

#include "ingot/runtime/util/lines.h"
#include "ingot/runtime/util/read_file.h"
#include "ingot/runtime/util/write_file.h"

namespace ingot {

namespace fs = std::filesystem;

TuningFile parse_tuning_lines(std::string_view text, const std::function<bool()>& stop) {
  TuningFile file;
  std::string_view rest = text;
  for (int number = 1; !rest.empty(); ++number) {
    if (stop && stop()) {
      file.stopped = true;
      return file;
    }
    const std::string_view line = take_line(rest);
    if (line.empty()) continue;
    std::string problem;
    if (auto record = parse_tuning_record(line, problem)) {
      file.records.push_back(*std::move(record));
    } else if (file.damaged++ == 0) {
      file.problem = fmt::format("line {} {}", number, problem);
    }
  }
  return file;
}

TuningFile read_tuning_file(const fs::path& path, const std::function<bool()>& stop) {
  constexpr std::uint64_t kMostBytes = std::uint64_t{2} << 30;  // millions of records
  return parse_tuning_lines(read_file(path, kMostBytes, "`ingot tune --export` writes one"), stop);
}

void write_tuning_file(const fs::path& path, std::span<const TuningRecord> records) {
  FileWriter writer(path);
  for (const TuningRecord& record : records) writer.write(print(record) + '\n');
  writer.publish();
}

}  // namespace ingot
