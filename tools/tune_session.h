// Tuning of a list of GEMMs, one after the other, apart from the device: each record is written when it is found, so
// that what a session has found is kept however it ends, and the next one goes on from there.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "ingot/runtime/measure/autotuner.h"
#include "ingot/runtime/tuning/tuning_store.h"
#include "tune_report.h"

namespace ingot::tools {

struct TuneSession {
  TuningStore* store = nullptr;
  TuningMachine machine{};
  // What is worth measuring, the untuned choice first. Where there is a record, its kernel goes before them.
  std::function<std::vector<MatmulSpec>(const MatmulCall&)> candidates;
  std::function<std::unique_ptr<MatmulMeasurer>(const MatmulCall&)> measurer;
  std::function<bool()> interrupted;  // asked often, by several threads
  double seconds = 1e6;               // for all of them, at most
  // Around each GEMM; `weight` is about how long it takes, in any unit.
  std::function<void(const TunedGemm&)> begin = [](const TunedGemm&) {};
  std::function<void(const TunedGemm&, double weight)> end = [](const TunedGemm&, double) {};
  std::function<void(const std::string&)> warn = [](const std::string&) {};
};

// About how long a GEMM takes to tune, in any unit.
double tuning_weight(const MatmulCall& call);

// Fills in the records that the store has.
void find_records(const TuneSession& session, std::vector<TunedGemm>& gemms);

// Tunes those without a record. One that cannot be tuned gets a problem, and the others go on. False where it was
// interrupted.
bool tune_missing(const TuneSession& session, std::vector<TunedGemm>& gemms);

}  // namespace ingot::tools
