#include "tuning_summary.h"

#include <algorithm>
#include <string>
#include <vector>

#include "ingot/runtime/jit/kernel_tier.h"
#include "ingot/runtime/tuning/tuning_record.h"

namespace ingot::tools {

TuningSummary summarize_tuning(Tuning mode, TuningStore& store, const std::filesystem::path& file,
                               const TuningMachine& machine) {
  TuningSummary summary{.mode = mode, .path = file, .is_file = !file.empty()};
  std::vector<TuningRecord> records;
  if (summary.is_file) {
    TuningFile read = read_tuning_file(file);
    records = std::move(read.records);
    summary.damaged = static_cast<std::size_t>(read.damaged);
  } else if (!store.root().empty()) {
    summary.path = store.root() / kTuningFolder;
    const std::size_t files = store.count();
    records = store.load();
    summary.damaged = files - std::min(files, records.size());
  }
  summary.this_machine = static_cast<std::size_t>(std::ranges::count(records, machine, &TuningRecord::machine));
  summary.other_machines = records.size() - summary.this_machine;
  return summary;
}

}  // namespace ingot::tools
