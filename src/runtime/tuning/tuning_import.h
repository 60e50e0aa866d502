// Takes tuning records of a bundle or of another store into a store. `ingot tune --import` replaces what the store has;
// this only adds what it lacks: what was measured here stays.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "ingot/runtime/jit/kernel_transfer.h"
#include "ingot/runtime/tuning/tuning_record.h"
#include "ingot/runtime/tuning/tuning_store.h"

namespace ingot {

struct ImportedRecords {
  std::int64_t added = 0;
  std::int64_t there = 0;  // the store had an answer to the same question
  std::vector<Refused> refused{};
  bool stopped = false;  // before the end
};

// `only`: the machine whose records are taken; null for all. Throws Error{io_failed} if the store cannot be written.
// `stop` is asked before each record.
ImportedRecords import_records(std::span<const TuningRecord> records, TuningStore& to, const TuningMachine* only,
                               const std::function<bool()>& stop = {});

}  // namespace ingot
