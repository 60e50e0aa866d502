#include "tuning_summary.h"

#include <algorithm>
#include <string>
#include <vector>

#include "ingot/runtime/tuning/tuning_file.h"
#include "ingot/runtime/util/store_directory.h"

namespace ingot::tools {
namespace {

constexpr const char* kFolder = "tuning";  // of the store: tuning_store.h

std::size_t files_in(const std::filesystem::path& root) {
  const StoreDirectory directory(root, {}, {});
  return directory.files(".json", [](const std::string& folder) { return folder == kFolder; }).size();
}

}  // namespace

TuningSummary summarize_tuning(Tuning mode, TuningStore& store, const std::filesystem::path& file,
                               const TuningMachine& machine) {
  TuningSummary summary{.mode = mode, .path = file, .is_file = !file.empty()};
  std::vector<TuningRecord> records;
  if (summary.is_file) {
    TuningFile read = read_tuning_file(file);
    records = std::move(read.records);
    summary.damaged = static_cast<std::size_t>(read.damaged);
  } else if (!store.root().empty()) {
    summary.path = store.root() / kFolder;
    const std::size_t files = files_in(store.root());
    records = store.load();
    summary.damaged = files - std::min(files, records.size());
  }
  summary.this_machine = static_cast<std::size_t>(std::ranges::count(records, machine, &TuningRecord::machine));
  summary.other_machines = records.size() - summary.this_machine;
  return summary;
}

}  // namespace ingot::tools
