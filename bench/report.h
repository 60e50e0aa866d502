// What was measured, as a table to read and as JSON to keep.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cast_cases.h"
#include "ceiling.h"
#include "host_cost.h"
#include "ingot/runtime/measure/timing.h"
#include "machine.h"

namespace ingot::bench {

struct CaseResult {
  CastCase cast_case;
  Timing timing{};
  std::string fault{};  // why there is no time: the result was wrong
};

struct CastReport {
  Machine machine{};
  CopyCeiling before{};
  CopyCeiling after{};
  std::vector<CaseResult> cases{};
  std::vector<HostCost> host{};

  // The yardstick: the faster of the two.
  double ceiling() const;
};

double tb_per_s(const CaseResult& result);
bool passes(const CaseResult& result, double ceiling);  // its target, where it has one

std::string to_text(const CastReport& report);
nlohmann::ordered_json to_json(const CastReport& report);

}  // namespace ingot::bench
