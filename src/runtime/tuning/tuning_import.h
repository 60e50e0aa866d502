// What is done with records of other machines. import_records() takes tuning records of a bundle or of another store
// into a store. `ingot tune --import` replaces what the store has; this only adds what it lacks: what was measured here
// stays.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>
#include "ingot/codegen/recording.h"
#include "ingot/codegen/types/target.h"
#include "ingot/runtime/jit/kernel_listing.h"
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

// The kernels that a GPU would choose by the records, to be compiled ahead: the choices of those records that are of
// GPUs with that target and as many multiprocessors. (Which of them a run uses also
// depends on its driver and libraries: matmul_choices.h.)
std::vector<TunedMatmul> tuned_matmuls(std::span<const TuningRecord> records, const MatmulDevice& device);

}  // namespace ingot
