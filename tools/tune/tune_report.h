// Prints what will be tuned and what tuning has found, as text and as JSON.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ingot/runtime/tuning/tuning_record.h"
#include "tune/tune_plan.h"

namespace ingot::tools {

struct TunedGemm {
  PlannedGemm planned;
  std::optional<TuningRecord> record{};  // none: not tuned yet
  std::string problem{};                 // why tuning found none
};

// What `ingot tune --list` prints: a line for each GEMM, or JSON.
std::string list(const std::vector<PlannedGemm>& planned);
std::string list_json(const std::vector<PlannedGemm>& planned);

// What `ingot tune` prints at the end.
std::string table(const std::vector<TunedGemm>& gemms);
std::string json(const std::vector<TunedGemm>& gemms, const TuningMachine& machine);

}  // namespace ingot::tools
