#include "ingot/runtime/tuning/tuning_store.h"

#include <string_view>
#include <utility>

#include "ingot/runtime/jit/kernel_tier.h"

namespace ingot {
namespace {

std::string file_name(const TuningMachine& machine, const MatmulSpec& spec, const MatmulSize& size) {
  return print(tuning_key(machine, spec, size)).append(kTuningSuffix);
}

std::string file_name(const TuningRecord& record) { return file_name(record.machine, record.spec, record.size); }

// Takes the record of a file of this name.
StoreDirectory::Accept reader_of(const std::string& name, std::optional<TuningRecord>& record) {
  return [&name, &record](std::string_view content, std::string& problem) {
    const std::string_view line = line_of_tuning_file(content, problem);
    if (problem.empty()) record = parse_tuning_record(line, problem);
    if (record && file_name(*record) != name) {
      problem = "holds another record";
      record.reset();
    }
    return record.has_value();
  };
}

}  // namespace

TuningStore::TuningStore(std::optional<std::filesystem::path> root, Warn warn)
    : directory_(std::move(root), kMaxTuningRecordBytes, std::move(warn),
                 {.lost = "and `ingot tune` measures that matmul again",
                  .unusable = "Tuning records are not kept; set INGOT_CACHE_DIR to a directory of yours with mode 0700 "
                              "and free space to keep them on disk"}) {}

bool TuningStore::put(const TuningRecord& record) {
  return directory_.publish(kTuningFolder, file_name(record), print(record) + "\n");
}

std::optional<TuningRecord> TuningStore::find(const TuningMachine& machine, const MatmulSpec& spec,
                                              const MatmulSize& size) {
  return read(file_name(machine, spec, size));
}

std::vector<TuningRecord> TuningStore::load(const std::function<bool()>& stop) {
  std::vector<TuningRecord> records;
  for (const StoredFile& file : files()) {
    if (stop && stop()) break;
    if (auto record = read(file.name.substr(file.name.find('/') + 1))) records.push_back(*std::move(record));
  }
  return records;
}

TuningStore::Survey TuningStore::survey(StoreDirectory::Damaged damaged, const std::function<bool()>& stop) {
  Survey survey;
  for (const StoredFile& file : entries()) {
    survey.stopped = stop && stop();
    if (survey.stopped) break;
    const std::string name = file.name.substr(file.name.find('/') + 1);
    std::optional<TuningRecord> record;
    StoreDirectory::Check check = directory_.check(kTuningFolder, name, reader_of(name, record), damaged);
    if (record) {
      survey.records.push_back(*std::move(record));
    } else if (!check.problem.empty()) {
      survey.damaged.push_back({.file = file.name, .problem = std::move(check.problem), .moved = check.moved});
    }
  }
  return survey;
}

RemovedFiles TuningStore::clear(const std::function<bool()>& stop) const {
  return directory_.remove_all(entries(), stop);
}

std::vector<StoredFile> TuningStore::files() const {
  std::vector<StoredFile> regular = entries();
  std::erase_if(regular, [](const StoredFile& file) { return !file.is_regular; });
  return regular;
}

// All files that have a record's name.
std::vector<StoredFile> TuningStore::entries() const {
  std::vector<StoredFile> all = directory_.entries([](const std::string& folder) { return folder == kTuningFolder; });
  std::erase_if(all, [](const StoredFile& file) { return !is_tuning_file(file.name.substr(file.name.find('/') + 1)); });
  return all;
}

std::optional<TuningRecord> TuningStore::read(const std::string& name) {
  std::optional<TuningRecord> record;
  directory_.read(kTuningFolder, name, reader_of(name, record));
  return record;
}

}  // namespace ingot
