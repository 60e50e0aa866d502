// How many tuning records there are, and which of them count on this machine: what `ingot info` says about tuning.
#pragma once

#include <cstddef>
#include <filesystem>

#include "ingot/runtime/tuning/matmul_choices.h"
#include "ingot/runtime/tuning/tuning_record.h"
#include "ingot/runtime/tuning/tuning_store.h"

namespace ingot::tools {

struct TuningSummary {
  Tuning mode = Tuning::on;
  std::filesystem::path path{};  // the store's folder or INGOT_TUNING_FILE; empty: there is no store
  bool is_file = false;
  std::size_t this_machine = 0;    // records that this machine follows
  std::size_t other_machines = 0;  // records that it ignores
  std::size_t damaged = 0;         // files of the store, which reading has moved aside, or lines of the file
};

// Counts the records of `file`, or the store's if `file` is empty. Throws Error{not_found, io_failed} for a file that
// cannot be read.
TuningSummary summarize_tuning(Tuning mode, TuningStore& store, const std::filesystem::path& file,
                               const TuningMachine& machine);

}  // namespace ingot::tools
