#include "ingot/runtime/tuning/tuning_store.h"

#include <string_view>
#include <utility>

namespace ingot {
namespace {

constexpr const char* kFolder = "tuning";
constexpr std::string_view kSuffix = ".json";

std::string file_name(const TuningMachine& machine, const MatmulSpec& spec, const MatmulSize& size) {
  return print(tuning_key(machine, spec, size)).append(kSuffix);
}

std::string file_name(const TuningRecord& record) { return file_name(record.machine, record.spec, record.size); }

// "<32 hex digits>.json"
bool is_record(std::string_view name) {
  constexpr std::size_t kDigits = 32;
  return name.size() == kDigits + kSuffix.size() && name.ends_with(kSuffix) &&
         name.substr(0, kDigits).find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

// Takes the record of a file of this name.
StoreDirectory::Accept reader_of(const std::string& name, std::optional<TuningRecord>& record) {
  return [&name, &record](std::string_view content, std::string& problem) {
    if (!content.ends_with('\n')) {
      problem = "is truncated";
      return false;
    }
    content.remove_suffix(1);
    record = parse_tuning_record(content, problem);
    if (record && file_name(*record) != name) {
      problem = "holds another record";
      record.reset();
    }
    return record.has_value();
  };
}

}  // namespace

TuningStore::TuningStore(std::optional<std::filesystem::path> root, Warn warn)
    : directory_(std::move(root), std::move(warn),
                 {.lost = "and `ingot tune` measures that matmul again",
                  .unusable = "Tuning records are not kept; set INGOT_CACHE_DIR to a directory of yours with mode 0700 "
                              "and free space to keep them on disk"}) {}

bool TuningStore::put(const TuningRecord& record) {
  return directory_.publish(kFolder, file_name(record), print(record) + "\n");
}

std::optional<TuningRecord> TuningStore::find(const TuningMachine& machine, const MatmulSpec& spec,
                                              const MatmulSize& size) {
  return read(file_name(machine, spec, size));
}

std::vector<TuningRecord> TuningStore::load(const std::function<bool()>& stop) {
  std::vector<TuningRecord> records;
  for (const StoredFile& file :
       directory_.files(kSuffix, [](const std::string& folder) { return folder == kFolder; })) {
    if (stop && stop()) break;
    if (auto record = read(file.name.substr(file.name.find('/') + 1))) records.push_back(*std::move(record));
  }
  return records;
}

TuningStore::Survey TuningStore::survey(StoreDirectory::Damaged damaged, const std::function<bool()>& stop) {
  Survey survey;
  for (const StoredFile& file : files()) {
    survey.stopped = stop && stop();
    if (survey.stopped) break;
    const std::string name = file.name.substr(file.name.find('/') + 1);
    std::optional<TuningRecord> record;
    StoreDirectory::Check check = directory_.check(kFolder, name, reader_of(name, record), damaged);
    if (record) {
      survey.records.push_back(*std::move(record));
    } else if (!check.problem.empty()) {
      survey.damaged.push_back({.file = file.name, .problem = std::move(check.problem), .moved = check.moved});
    }
  }
  return survey;
}

RemovedFiles TuningStore::clear(const std::function<bool()>& stop) const {
  return directory_.remove_all(files(), stop);
}

// Whatever has a record's name.
std::vector<StoredFile> TuningStore::files() const {
  std::vector<StoredFile> all = directory_.entries([](const std::string& folder) { return folder == kFolder; });
  std::erase_if(all, [](const StoredFile& file) { return !is_record(file.name.substr(file.name.find('/') + 1)); });
  return all;
}

std::optional<TuningRecord> TuningStore::read(const std::string& name) {
  std::optional<TuningRecord> record;
  directory_.read(kFolder, name, reader_of(name, record));
  return record;
}

}  // namespace ingot
