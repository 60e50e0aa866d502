#include "ingot/runtime/tuning/tuning_import.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "ingot/runtime/error.h"
#include "ingot/runtime/util/directory_entries.h"
#include "ingot/runtime/util/trusted_file.h"

namespace ingot {
namespace {

constexpr const char* kFolder = "tuning";  // of a store: tuning_store.h
constexpr std::int64_t kMostBytes = std::int64_t{1} << 20;

// The record of a file; otherwise nothing, with the reason in `problem`.
std::optional<TuningRecord> read_record(const std::filesystem::path& file, std::string& problem) {
  const TrustedFile opened = open_trusted(file, problem);
  if (!opened.file) return std::nullopt;
  if (opened.bytes > kMostBytes) {
    problem = fmt::format("has {} bytes; at most {} are read", opened.bytes, kMostBytes);
    return std::nullopt;
  }
  std::string line = read_at(opened.file, 0, static_cast<std::size_t>(opened.bytes));
  if (!line.ends_with('\n')) {
    problem = "is truncated";
    return std::nullopt;
  }
  line.pop_back();
  return parse_tuning_record(line, problem);
}

}  // namespace

ImportedRecords import_records(std::span<const TuningRecord> records, TuningStore& to, const TuningMachine* only,
                               const std::function<bool()>& stop) {
  ImportedRecords imported;
  for (const TuningRecord& record : records) {
    imported.stopped = stop && stop();
    if (imported.stopped) break;
    const std::string differs = only != nullptr ? difference(record.machine, *only) : "";
    if (!differs.empty()) {
      add_refused(imported.refused, {.why = fmt::format("measured on another machine ({})", differs),
                                     .first = print(MatmulCall{.spec = record.spec, .size = record.size}),
                                     .count = 1});
    } else if (to.find(record.machine, record.spec, record.size)) {
      ++imported.there;
    } else if (to.put(record)) {
      ++imported.added;
    } else {
      throw Error(ErrorCode::io_failed, to.root().string(),
                  fmt::format("{} tuning records were imported, then one could not be written: {}", imported.added,
                              to.disabled_reason()));
    }
  }
  return imported;
}

TuningFile read_tuning_folder(const std::filesystem::path& store_root, const std::function<bool()>& stop) {
  TuningFile found;
  const std::filesystem::path folder = store_root / kFolder;
  const FileDescriptor directory = open_directory(AT_FDCWD, folder.c_str());
  if (!directory) return found;
  for (const DirectoryEntry& entry : entries_of(directory)) {
    found.stopped = stop && stop();
    if (found.stopped) break;
    if (!entry.name.ends_with(".json")) continue;
    std::string problem;
    if (auto record = read_record(folder / entry.name, problem)) {
      found.records.push_back(*std::move(record));
    } else if (!problem.empty() && found.damaged++ == 0) {
      found.problem = fmt::format("{} {}", (folder / entry.name).string(), problem);
    }
  }
  return found;
}

}  // namespace ingot
