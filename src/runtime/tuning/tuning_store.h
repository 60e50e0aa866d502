// The store of tuning records, on disk next to the kernels: <root>/tuning/<32 hex digits>.json, one line each, named by
// tuning_key(). store_directory.h explains how files are published, checked and moved aside, and what a failing disk
// costs. A process killed at any moment leaves only complete records.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "ingot/api.h"
#include "ingot/runtime/tuning/tuning_record.h"
#include "ingot/runtime/util/store_directory.h"

namespace ingot {

class INGOT_API TuningStore {
 public:
  using Warn = StoreDirectory::Warn;

  // `root` and `warn`: as for KernelStore.
  explicit TuningStore(std::optional<std::filesystem::path> root, Warn warn = {});

  // Replaces the record with the same key. If it cannot be written, returns false and warns once.
  bool put(const TuningRecord& record);
  std::optional<TuningRecord> find(const TuningMachine& machine, const MatmulSpec& spec, const MatmulSize& size);
  // All records of all machines, in no particular order. Damaged ones are moved aside, with one warning; files of other
  // names are none of the store's. `stop` is asked before each record; once it is true, the rest is left out.
  std::vector<TuningRecord> load(const std::function<bool()>& stop = {});
  // How many load() looks at.
  std::size_t count() const { return files().size(); }

  // A file with a record's name that is none.
  struct Damaged {
    std::string file;     // "tuning/<32 hex digits>.json"
    std::string problem;  // "is truncated"
    bool moved = false;   // to the quarantine
  };
  // What a look at the whole store found.
  struct Survey {
    std::vector<TuningRecord> records{};
    std::vector<Damaged> damaged{};
    bool stopped = false;  // before the end
  };
  // All records, and what else has a record's name: links, FIFOs and folders too. Damaged files stay where they are,
  // unless they are to be moved.
  Survey survey(StoreDirectory::Damaged damaged, const std::function<bool()>& stop = {});
  // Removes every file with a record's name; one that is replaced meanwhile stays.
  RemovedFiles clear(const std::function<bool()>& stop = {}) const;

  const std::filesystem::path& root() const { return directory_.root(); }
  std::string disabled_reason() const { return directory_.disabled_reason(); }
  // The same, and why a record could not be kept now: writes a file and removes it.
  std::string write_problem() const { return directory_.write_problem(); }

 private:
  std::optional<TuningRecord> read(const std::string& name);
  std::vector<StoredFile> files() const;
  std::vector<StoredFile> entries() const;

  StoreDirectory directory_;
};

}  // namespace ingot
