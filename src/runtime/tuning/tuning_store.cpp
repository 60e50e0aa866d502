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

std::optional<TuningRecord> TuningStore::read(const std::string& name) {
  std::optional<TuningRecord> record;
  directory_.read(kFolder, name, [&](std::string_view content, std::string& problem) {
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
  });
  return record;
}

}  // namespace ingot
