#include "ingot/runtime/tuning/tuning_import.h"
#include <fmt/format.h>
#include <string>
#include "ingot/runtime/util/count_of.h"
#include "ingot/runtime/util/error.h"

namespace ingot {

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
                  fmt::format("{} imported, then one could not be written: {}",
                              count_of(imported.added, "tuning record"), to.disabled_reason()));
    }
  }
  return imported;
}

std::vector<TunedMatmul> tuned_matmuls(std::span<const TuningRecord> records, const MatmulDevice& device) {
  const std::string target = print(device.target);
  std::vector<TunedMatmul> all;
  for (const TuningRecord& record : records) {
    if (record.machine.target != target || record.machine.multiprocessors != device.multiprocessors) continue;
    all.push_back({.call = {.spec = record.spec, .size = record.size}, .chosen = record.chosen});
  }
  return all;
}

}  // namespace ingot
