// Prints the results of bench_cast as a table and as JSON.
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
  double copy_us = 0;   // median of a copy of as many bytes, in the same rounds
  std::string fault{};  // why the result is wrong; there is then no time
};

struct CastReport {
  Machine machine{};
  CopyCeiling before{};
  CopyCeiling after{};
  std::vector<CaseResult> cases{};
  std::vector<HostCost> host{};

  // The yardstick: the faster of the two copies.
  double ceiling() const;
};

double tb_per_s(const CaseResult& result);
bool passes(const CaseResult& result, double ceiling);  // does it reach its target? true if it has none

std::string to_text(const CastReport& report);
nlohmann::ordered_json to_json(const CastReport& report);

}  // namespace ingot::bench
