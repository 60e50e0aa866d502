// What tuning has found, as a table to read and as JSON.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ingot/runtime/tuning/tuning_record.h"
#include "tune_plan.h"

namespace ingot::tools {

struct TunedGemm {
  PlannedGemm planned;
  std::optional<TuningRecord> record{};  // none: not tuned yet
  std::string problem{};                 // why there is none, where tuning has tried
};

std::string table(const std::vector<TunedGemm>& gemms);
std::string json(const std::vector<TunedGemm>& gemms, const TuningMachine& machine);

}  // namespace ingot::tools
