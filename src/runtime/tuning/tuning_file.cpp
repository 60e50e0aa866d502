#include "ingot/runtime/tuning/tuning_file.h"

#include <fmt/format.h>
#include <unistd.h>

#include <fstream>
#include <system_error>
#include <utility>

#include "ingot/runtime/error.h"

namespace ingot {

namespace fs = std::filesystem;

TuningFile read_tuning_file(const fs::path& path) {
  std::error_code error;
  if (!fs::is_regular_file(path, error)) {
    throw Error(ErrorCode::not_found, path.string(), "there is no such file; `ingot tune --export` writes one");
  }
  std::ifstream stream(path, std::ios::binary);
  TuningFile file;
  std::string line;
  for (int number = 1; std::getline(stream, line); ++number) {
    if (line.empty()) continue;
    std::string problem;
    if (auto record = parse_tuning_record(line, problem)) {
      file.records.push_back(*std::move(record));
    } else if (file.damaged++ == 0) {
      file.problem = fmt::format("line {} {}", number, problem);
    }
  }
  if (!stream.eof()) throw Error(ErrorCode::io_failed, path.string(), "cannot be read");
  return file;
}

void write_tuning_file(const fs::path& path, std::span<const TuningRecord> records) {
  const fs::path unfinished = path.string() + fmt::format(".{}.tmp", getpid());
  std::ofstream stream(unfinished, std::ios::binary | std::ios::trunc);
  for (const TuningRecord& record : records) stream << print(record) << '\n';
  stream.close();
  std::error_code error;
  if (stream) fs::rename(unfinished, path, error);
  if (stream && !error) return;
  fs::remove(unfinished, error);
  throw Error(ErrorCode::io_failed, path.string(), "cannot be written; check that its folder exists and has room");
}

}  // namespace ingot
