// Tuning records on disk, beside the kernels: <root>/tuning/<32 hex digits>.json, one line each, named by
// tuning_key(). How a file is published, checked and moved aside, and what a broken disk costs: store_directory.h. A
// process that is killed at any moment leaves whole records only.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "ingot/runtime/tuning/tuning_record.h"
#include "ingot/runtime/util/store_directory.h"

namespace ingot {

class TuningStore {
 public:
  using Warn = StoreDirectory::Warn;

  // Root and `warn` as KernelStore's.
  explicit TuningStore(std::optional<std::filesystem::path> root, Warn warn = {});

  // Replaces the record of the same key. False where it could not be written, which is one warning.
  bool put(const TuningRecord& record);
  std::optional<TuningRecord> find(const TuningMachine& machine, const MatmulSpec& spec, const MatmulSize& size);
  // All records of all machines, in no order. Damaged ones are moved aside, with one warning.
  std::vector<TuningRecord> load();

  const std::filesystem::path& root() const { return directory_.root(); }
  std::string disabled_reason() const { return directory_.disabled_reason(); }

 private:
  std::optional<TuningRecord> read(const std::string& name);

  StoreDirectory directory_;
};

}  // namespace ingot
