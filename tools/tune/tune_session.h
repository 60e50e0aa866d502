// Tunes a list of GEMMs one after the other, without knowing the device. Each record is written as soon as it is found,
// so that nothing is lost however a session ends, and the next one goes on from there.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "ingot/runtime/measure/autotuner.h"
#include "ingot/runtime/tuning/tuning_store.h"
#include "tune/tune_report.h"

namespace ingot::tools {

struct TuneSession {
  TuningStore* store = nullptr;
  TuningMachine machine{};
  // The kernels worth measuring, the untuned choice first. If there is a record, its kernel is measured before them.
  std::function<std::vector<MatmulSpec>(const MatmulCall&)> candidates;
  std::function<std::unique_ptr<MatmulMeasurer>(const MatmulCall&)> measurer;
  std::function<bool()> interrupted;  // asked often, by several threads
  double seconds = 1e6;               // the limit for all GEMMs together
  // Called before and after each GEMM; `weight` is roughly how long it takes, in any unit.
  std::function<void(const TunedGemm&)> begin = [](const TunedGemm&) {};
  std::function<void(const TunedGemm&, double weight)> end = [](const TunedGemm&, double) {};
  std::function<void(const std::string&)> warn = [](const std::string&) {};
};

// Roughly how long a GEMM takes to tune, in any unit.
double tuning_weight(const MatmulCall& call);

// Fills in the records that the store already has.
void find_records(const TuneSession& session, std::vector<TunedGemm>& gemms);

// Tunes the GEMMs without a record. One that cannot be tuned gets a problem, and the rest go on. Returns false if it
// was interrupted.
bool tune_missing(const TuneSession& session, std::vector<TunedGemm>& gemms);

}  // namespace ingot::tools
