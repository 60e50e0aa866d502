// Summarises many samples of a short time, and checks a time against its limit. On a machine with other work the worst
// samples are the scheduler's, so the 99th of 100 is reported with the median rather than the largest.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace ingot::bench {

struct Spread {
  double median = 0;
  double p99 = 0;  // 99 of 100 samples are no larger
  std::size_t samples = 0;
};

// Needs at least one sample.
Spread spread_of(std::vector<double> samples);

nlohmann::ordered_json to_json(const Spread& spread);

// The end of a table's row: the limit in 8 columns ("-" where there is none), then " pass" or " over".
std::string limit_columns(double measured, std::optional<double> limit);
const char* verdict(double measured, double limit);  // "pass" or "over"
// Null where there is no limit.
nlohmann::ordered_json limit_json(std::optional<double> limit);

}  // namespace ingot::bench
